"""Every reachable state of a request: the operator may die at any time, and others may act meanwhile."""

import dataclasses
import datetime
import math
from collections import defaultdict
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from kofn_jobs.conditions import with_conditions
from kofn_jobs.kinds import AttemptOutcome, Role, attempt_of
from kofn_jobs.lifecycle import Action, Become, Observed, Start, left_s, pause_s, step
from kofn_jobs.phases import ENDED, FOLLOWING, Phase
from kofn_jobs.request import RequestedNode, TrainingSpec, TrainingStatus
from tests.jobs.cluster import AT, Cluster

Queue = tuple[tuple[Action, ...], int]
"""An operator's remaining actions, and the request's version when it decided on them."""

State = tuple[Cluster, tuple[Queue, ...]]

SPEC = TrainingSpec(accelerators=3, backoff_limit=1)


def following(state: State, failures: int) -> Iterator[State]:
    """Yield the next states: each operator decides, does its next action, or dies; or a spontaneous event happens."""
    cluster, queues = state
    for place, (actions, read_at) in enumerate(queues):
        others = (queues[:place], queues[place + 1 :])
        if actions:
            done = cluster.done(actions[0], read_at)
            yield done, (*others[0], (actions[1:], read_at), *others[1])
            yield cluster, (*others[0], ((), 0), *others[1])
        elif decided := cluster.actions():
            yield cluster, (*others[0], (decided, cluster.version), *others[1])
    for happened in cluster.happenings(failures):
        yield happened, queues


def explore(cluster: Cluster, *, operators: int, failures: int) -> dict[State, list[State]]:
    start: State = (cluster, (((), 0),) * operators)
    graph: dict[State, list[State]] = {}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        if state not in graph:
            graph[state] = list(following(state, failures))
            for other in graph[state]:
                check_arrow(state[0], other[0])
            waiting += graph[state]
    return graph


def at_rest(state: State) -> bool:
    """Whether nothing remains to be done."""
    cluster, queues = state
    return cluster.status.phase in ENDED and not cluster.actions() and not any(actions for actions, _ in queues)


def check(graph: dict[State, list[State]]) -> set[State]:
    """Check that each state leads to rest, and return the states of rest."""
    ends = {state for state in graph if at_rest(state)}
    before = defaultdict(list)
    for state, others in graph.items():
        for other in others:
            before[other].append(state)
    reaching, waiting = set(ends), list(ends)
    while waiting:
        for state in before[waiting.pop()]:
            if state not in reaching:
                reaching.add(state)
                waiting.append(state)
    assert reaching == set(graph)
    return ends


def check_arrow(one: Cluster, other: Cluster) -> None:
    assert one.status.attempt <= other.status.attempt
    assert other.status.phase in (one.status.phase, *FOLLOWING[one.status.phase])
    if one.status.phase in ENDED:
        assert other.status == one.status
    for attempt in other.starts - one.starts:
        state = next(state for of, state in one.pods if of == attempt)
        assert state == "gated" and one.status.phase in ("Starting", "Running")


@pytest.mark.parametrize(
    ("failures", "ends"), [(0, {("Succeeded", 1)}), (1, {("Succeeded", 1), ("Succeeded", 2)}), (2, None)]
)
def test_operator_that_dies_at_any_step_leaves_a_request_that_ends(
    failures: int, ends: set[tuple[str, int]] | None
) -> None:
    found = check(explore(Cluster(spec=SPEC), operators=1, failures=failures))
    expected = ends or {("Succeeded", 1), ("Succeeded", 2), ("Failed", 2)}
    assert {(cluster.status.phase, cluster.status.attempt) for cluster, _ in found} == expected
    kept = {(Role.CONFIG, 0), (Role.SECRET, 0), (Role.SERVICE, 0)}
    for cluster, _ in found:
        assert cluster.made == kept or (cluster.refused and cluster.made < kept)
        assert not cluster.pods


@pytest.mark.slow
def test_two_operators_at_once_come_to_the_same_end() -> None:
    found = check(explore(Cluster(spec=SPEC), operators=2, failures=0))
    assert {(cluster.status.phase, cluster.status.attempt) for cluster, _ in found} == {("Succeeded", 1)}
    assert all(cluster.made == {(Role.CONFIG, 0), (Role.SECRET, 0), (Role.SERVICE, 0)} for cluster, _ in found)


def test_two_operators_need_conditional_writes_of_the_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle of the previous test: without conditions, one operator reverts the other's status."""
    done = Cluster.done

    def stored_in_any_case(cluster: Cluster, action: Action, read_at: int) -> Cluster:
        return done(cluster, action, cluster.version)

    monkeypatch.setattr(Cluster, "done", stored_in_any_case)
    with pytest.raises(AssertionError):
        check(explore(Cluster(spec=SPEC), operators=2, failures=0))


def last(cluster: Cluster) -> Cluster:
    """Return the final state without failures, taking the first possible step each time."""
    while True:
        if actions := cluster.actions():
            cluster = cluster.done(actions[0], cluster.version)
        elif following := list(cluster.happenings(0)):
            cluster = following[0]
        else:
            return cluster


@pytest.mark.parametrize(
    ("policy", "left"),
    [("All", set()), ("Running", {Role.WORKLOAD}), ("None", {Role.WORKLOAD, Role.CONTROL})],
)
def test_clean_pod_policy_decides_what_is_left(policy: str, left: set[Role]) -> None:
    ended = last(Cluster(spec=replace(SPEC, clean_pod_policy=policy)))
    assert ended.status.phase == "Succeeded"
    assert {role for role, attempt in ended.made if attempt} == left


@pytest.mark.parametrize(
    ("policy", "left"),
    [("All", set()), ("Running", set()), ("None", {Role.WORKLOAD, Role.CONTROL})],
)
def test_failed_request_cleans_up_a_workload_that_still_runs(policy: str, left: set[Role]) -> None:
    """The workload has no outcome, as at a deadline or after the last attempt's switch was deleted."""
    status = TrainingStatus(phase="Failed", attempt=1, workload="JobSet")
    made = frozenset({(Role.CONTROL, 1), (Role.WORKLOAD, 1)})
    failed = Cluster(spec=replace(SPEC, clean_pod_policy=policy), status=status, made=made)
    for action in failed.actions():
        failed = failed.done(action, failed.version)
    assert {role for role, _ in failed.made} == left and not failed.actions()


def test_fifteen_workers_are_split_into_ten_and_five() -> None:
    ended = last(Cluster(spec=TrainingSpec(accelerators=15)))
    assert [(part.node, part.accelerators) for part in ended.status.parts] == [("a", 10), ("b", 5)]


def test_nodes_of_the_request_override_the_clusters() -> None:
    ended = last(Cluster(spec=replace(SPEC, nodes=(RequestedNode(name="mine", accelerators=4),))))
    assert [part.node for part in ended.status.parts] == ["mine"]


def test_impossible_request_is_refused_with_the_arithmetic() -> None:
    ended = last(Cluster(spec=TrainingSpec(accelerators=25)))
    assert (ended.status.phase, ended.status.message) == ("Refused", "25 accelerators: 10 + 10 = 20 are there")
    assert not ended.made


def test_user_without_permission_is_denied() -> None:
    ended = last(Cluster(spec=SPEC, permitted=False))
    assert ended.status.phase == "Denied" and "ada may not train in default" in ended.status.message
    assert not ended.made


def test_training_starts_when_all_pods_are_waiting() -> None:
    cluster = Cluster(spec=SPEC)
    while cluster.status.phase != "Preparing" or cluster.actions():
        cluster = cluster.done(cluster.actions()[0], cluster.version)
    pods = frozenset({"1-0", "1-1"})
    for short in (
        {"workers": pods, "gated": pods, "control_ready": True},
        {"workers": pods | {"1-2"}, "gated": pods, "control_ready": False},
    ):
        seen = replace_seen(cluster, **short)
        assert step(cluster.request, seen) == ()
    (become,) = step(cluster.request, replace_seen(cluster, workers=pods | {"1-2"}, control_ready=True))
    assert isinstance(become, Become) and become.status.phase == "Starting"


def replace_seen(cluster: Cluster, **changes: object) -> Observed:
    return dataclasses.replace(cluster.seen(), **changes)  # type: ignore[arg-type]


def test_object_of_another_owner_is_left_alone() -> None:
    cluster = Cluster(spec=SPEC, status=TrainingStatus(phase="Preparing", attempt=1))
    (become,) = step(cluster.request, replace_seen(cluster, foreign="ConfigMap digits-kofn"))
    assert isinstance(become, Become) and become.status.phase == "Refused"
    assert become.status.message.startswith("ConfigMap digits-kofn exists and belongs to another owner")


def test_refusal_of_the_cluster_is_retried_and_then_fails() -> None:
    for attempt, phase in ((1, "Retrying"), (2, "Failed")):
        cluster = Cluster(spec=SPEC, status=TrainingStatus(phase="Preparing", attempt=attempt))
        (become,) = step(cluster.request, replace_seen(cluster, refused="the cluster refused Pod a: no quota"))
        assert isinstance(become, Become) and become.status.phase == phase
        assert become.status.message.startswith(f"attempt {attempt}: the cluster refused Pod a: no quota")


@pytest.mark.parametrize("phase", ["Preparing", "Starting"])
def test_pod_that_cannot_start_is_reported_once(phase: Phase) -> None:
    made = frozenset((role, attempt_of(role, 1)) for role in Role)
    cluster = Cluster(spec=SPEC, status=TrainingStatus(phase=phase, attempt=1, message="3 = 3"), made=made)
    seen = replace_seen(cluster, trouble="digits-1-switch: ImagePullBackOff of kofn", workers=frozenset("abc"))
    (become,) = step(cluster.request, seen)
    assert isinstance(become, Become)
    assert (become.status.phase, become.status.message) == (phase, "digits-1-switch: ImagePullBackOff of kofn")
    assert step(msgspec.structs.replace(cluster.request, status=become.status), seen) == ()


@pytest.mark.parametrize("phase", ["Preparing", "Starting", "Running", "Retrying"])
def test_request_fails_at_its_deadline(phase: Phase) -> None:
    spec = replace(SPEC, active_deadline_seconds=60)
    made = frozenset((role, attempt_of(role, 1)) for role in Role)
    status = with_conditions(TrainingStatus(), TrainingStatus(phase=phase, attempt=1, message="no room"), now=AT)
    cluster = Cluster(spec=spec, status=status, made=made)
    for seconds, failed in ((59, False), (60, True)):
        now = AT + datetime.timedelta(seconds=seconds)
        actions = step(cluster.request, replace_seen(cluster, now=now))
        become = [action.status for action in actions if isinstance(action, Become) and action.status.phase == "Failed"]
        assert bool(become) == failed
        assert left_s(cluster.request, now) == 60 - seconds
    assert become[0].message == f"spec.activeDeadlineSeconds is 60, and {phase} was: no room"
    assert left_s(Cluster(spec=SPEC, status=status).request, now) == math.inf
    assert left_s(msgspec.structs.replace(cluster.request, status=become[0]), now) == math.inf
    ended = step(cluster.request, replace_seen(cluster, now=now, outcome=AttemptOutcome.SUCCEEDED))
    assert phase == "Retrying" or [each.status.phase for each in ended if isinstance(each, Become)] == ["Succeeded"]


def test_workload_deleted_by_hand_starts_another_attempt() -> None:
    status = TrainingStatus(phase="Running", attempt=1)
    cluster = Cluster(spec=SPEC, status=status, made=frozenset({(Role.CONTROL, 1)}))
    (become,) = cluster.actions()
    assert isinstance(become, Become) and become.status.phase == "Retrying"
    assert become.status.message == "attempt 1: its workload was deleted"


def test_replacement_of_a_dead_pod_is_started() -> None:
    made = frozenset({(Role.CONTROL, 1), (Role.WORKLOAD, 1)})
    cluster = Cluster(spec=SPEC, status=TrainingStatus(phase="Running", attempt=1), made=made)
    assert step(cluster.request, replace_seen(cluster, gated=frozenset({"1-2"}))) == (Start(frozenset({"1-2"})),)


def test_running_request_shows_its_k() -> None:
    made = frozenset({(Role.CONTROL, 1), (Role.WORKLOAD, 1)})
    cluster = Cluster(spec=SPEC, status=TrainingStatus(phase="Running", attempt=1), made=made)
    seen = replace_seen(cluster, ready=3, k=2, iteration=40, late_workers=(1,), metric=0.9)
    (become,) = step(cluster.request, seen)
    assert isinstance(become, Become)
    status = become.status
    assert (status.k, status.iteration, status.late_workers, status.ready) == (2, 40, (1,), "3/3")
    assert status.metric == 0.9
    assert step(msgspec.structs.replace(cluster.request, status=status), seen) == ()


def test_pause_before_an_attempt_doubles_and_is_kept() -> None:
    spec = replace(SPEC, backoff_limit=9, backoff_seconds=20)
    pauses = []
    for attempt in range(1, 7):
        running = TrainingStatus(phase="Running", attempt=attempt, workload="JobSet")
        failed = Cluster(spec=spec, status=running, outcomes=frozenset({(attempt, AttemptOutcome.FAILED)}))
        (become,) = failed.actions()
        assert isinstance(become, Become)
        pauses.append(pause_s(become.status, AT))
        retrying = Cluster(spec=spec, status=become.status)
        assert not retrying.actions()
        (following,) = dataclasses.replace(retrying, waited=frozenset({attempt})).actions()
        assert isinstance(following, Become) and following.status.attempt == attempt + 1
    assert pauses == [20, 40, 80, 160, 300, 300]
