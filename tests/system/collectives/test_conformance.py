"""One suite for every communicator that needs all workers: the scenarios, and how calls fail."""

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.collectives import scenarios
from tests.system.collectives.crews import KINDS, PEERS, crew, processes
from tests.system.collectives.switched import MODEL, SWITCHES, close_all

SHORT_S = dict.fromkeys(KINDS, 1.0) | {"mpi": 2.0}
"""Limits of waits that time out; MPI's includes its start."""

OWN = {**dict.fromkeys(PEERS, scenarios.OF_PEERS), **dict.fromkeys(SWITCHES, scenarios.OF_A_SWITCH)}
"""Scenarios that only some kinds support."""


@pytest.fixture(scope="module", autouse=True)
def end_of_switches() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture(scope="class", params=KINDS)
def team(request: pytest.FixtureRequest) -> Iterator[Any]:
    with crew(request.param, 3) as found:
        found.kind = request.param
        yield found


class TestScenarios:
    """All scenarios share one team. Workers at a switch have one address each, so this team ends before other teams
    begin.
    """

    @pytest.mark.slow
    @pytest.mark.parametrize("scenario", scenarios.EVERY, ids=lambda scenario: scenario.__name__)
    def test_scenario(self, team: Any, scenario: Any) -> None:
        team.run(scenario)

    @pytest.mark.slow
    @pytest.mark.parametrize("number", range(2))
    def test_scenario_of_some_kinds(self, team: Any, number: int) -> None:
        team.run(OWN[team.kind][number])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("ring", 1),
        ("ring", 2),
        (MODEL, 1),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((MODEL, 2), ("ring", 5), (MODEL, 5))),
    ],
)
def test_any_number_of_workers_completes_the_scenarios(kind: str, workers: int) -> None:
    without = {scenarios.huge, *([scenarios.a_barrier_waits_for_all] if workers == 1 else [])}
    with crew(kind, workers) as team:
        for scenario in (*scenarios.EVERY, *OWN[kind]):
            if scenario not in without:
                team.run(scenario)


def check_difference(kind: str, what: str) -> None:
    with crew(kind, 3) as team:
        found = team.run(scenarios.calls_that_differ, what)
    _, _, (others, own) = scenarios.DIFFERENT[what]
    for error in found:
        assert error.startswith("the workers' calls differ: worker "), found
        assert f"worker 1 {own}" in error and (f"worker 0 {others}" in error or f"worker 2 {others}" in error), found


@pytest.mark.parametrize("what", scenarios.DIFFERENT)
def test_different_calls_name_both_workers_and_both_calls(what: str) -> None:
    check_difference("ring", what)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_different_calls_are_refused_by_every_kind(kind: str) -> None:
    check_difference(kind, "shape")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_worker_that_does_not_call_is_named(kind: str) -> None:
    limit_s = SHORT_S[kind]
    with crew(kind, 3, limit_s) as team:
        begin = time.monotonic()
        errors = team.run(scenarios.one_worker_does_not_call)
        assert time.monotonic() - begin < 3 * limit_s
    for error in errors:
        assert error.startswith(f"not made in {limit_s:g} s by worker 1: the call barrier ('awaited' #1) of worker "), (
            errors
        )
        assert error.endswith("; worker 1 calls barrier ('other' #1)"), errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.slow
def test_worker_that_dies_during_calls_is_named(kind: str, dead: int) -> None:
    """The error comes long before any time-out."""
    with processes(kind, 3) as team:
        team.run(scenarios.one_call)
        team.begin(scenarios.calls_until_failure)
        time.sleep(0.1)
        begin = time.monotonic()
        team.signal(dead, signal.SIGKILL)
        errors = team.end([rank for rank in range(3) if rank != dead])
        assert time.monotonic() - begin < 3
    assert all(error.startswith(f"worker {dead} is gone: ") for error in errors), errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hanging_worker_is_named(kind: str) -> None:
    """It hangs within a call or between two; the workers that wait for it are not named."""
    limit_s = SHORT_S[kind]
    with processes(kind, 3, limit_s) as team:
        team.run(scenarios.one_call)
        team.begin(scenarios.calls_until_failure)
        time.sleep(0.1)
        team.signal(1, signal.SIGSTOP)
        errors = team.end([0, 2])
        team.signal(1, signal.SIGKILL)
    assert all(error.startswith("no answer from worker 1: ") for error in errors), errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_closed_worker_is_named_and_finished_calls_keep_their_results(kind: str) -> None:
    with processes(kind, 3) as team:
        team.run(scenarios.one_call)
        team.run(scenarios.closes, ranks=[1])
        errors = team.run(scenarios.one_has_left, ranks=[0, 2])
    assert all("worker 1 has closed its communicator: it does not make the call" in error for error in errors), errors
