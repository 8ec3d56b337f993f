"""What an operator has done and not yet seen is not done twice; and is not believed for ever."""

from kofn.jobs.kinds import Role
from kofn.jobs.lifecycle import Become, Make, Observed, Remove, Start
from kofn.jobs.operator.expectations import KEPT_S, Expectations
from kofn.jobs.request import ObjectMeta, TrainingRequest, TrainingSpec, TrainingStatus

REQUEST = TrainingRequest(
    metadata=ObjectMeta(name="digits", uid="1", resource_version="7"), spec=TrainingSpec(accelerators=3)
)
POD = (Role.CONTROL, 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_was_made_removed_and_started_counts_until_it_is_seen() -> None:
    expected = Expectations(Clock())
    expected.note(REQUEST, Make(*POD))
    expected.note(REQUEST, Start(frozenset("ab")))
    assert expected.applied(REQUEST, Observed(gated=frozenset("abc"))) == Observed(
        made=frozenset({POD}), gated=frozenset("c")
    )
    assert expected.applied(REQUEST, Observed(made=frozenset({POD}))).made == {POD}
    assert not expected.applied(REQUEST, Observed()).made  # seen, and gone since: somebody removed it
    expected.note(REQUEST, Remove(*POD))
    assert not expected.applied(REQUEST, Observed(made=frozenset({POD}))).made


def test_what_never_comes_is_believed_for_a_while() -> None:
    clock = Clock()
    expected = Expectations(clock)
    expected.note(REQUEST, Make(*POD))
    clock.now = KEPT_S + 1
    assert not expected.applied(REQUEST, Observed()).made


def test_a_request_whose_status_was_replaced_is_outdated() -> None:
    expected = Expectations()
    assert not expected.outdated(REQUEST)
    expected.note(REQUEST, Become(TrainingStatus(phase="Preparing")))
    assert expected.outdated(REQUEST)
    expected.forget("1")
    assert not expected.outdated(REQUEST)
