"""An operator does not repeat an action whose effect it has not yet seen, and trusts it for a limited time."""

from kofn_jobs.kinds import Role
from kofn_jobs.lifecycle import Become, Make, Observed, Remove, Start
from kofn_jobs.operator.expectations import KEPT_S, Expectations
from kofn_jobs.request import ObjectMeta, TrainingRequest, TrainingSpec, TrainingStatus

REQUEST = TrainingRequest(
    metadata=ObjectMeta(name="digits", uid="1", resource_version="7"), spec=TrainingSpec(accelerators=3)
)
POD = (Role.CONTROL, 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_actions_count_until_their_effect_is_seen() -> None:
    expected = Expectations(Clock())
    expected.note(REQUEST, Make(*POD))
    expected.note(REQUEST, Start(frozenset("ab")))
    assert expected.applied(REQUEST, Observed(gated=frozenset("abc"))) == Observed(
        made=frozenset({POD}), gated=frozenset("c")
    )
    assert expected.applied(REQUEST, Observed(made=frozenset({POD}))).made == {POD}
    assert not expected.applied(REQUEST, Observed()).made  # seen and gone since, so another client removed it
    expected.note(REQUEST, Remove(*POD))
    assert not expected.applied(REQUEST, Observed(made=frozenset({POD}))).made


def test_missing_effect_is_trusted_for_a_while() -> None:
    clock = Clock()
    expected = Expectations(clock)
    expected.note(REQUEST, Make(*POD))
    clock.now = KEPT_S + 1
    assert not expected.applied(REQUEST, Observed()).made


def test_request_with_a_replaced_status_is_outdated() -> None:
    expected = Expectations()
    assert not expected.outdated(REQUEST)
    expected.note(REQUEST, Become(TrainingStatus(phase="Preparing")))
    assert expected.outdated(REQUEST)
    expected.forget("1")
    assert not expected.outdated(REQUEST)
