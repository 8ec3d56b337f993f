"""Ends of processes that are failures and ends that are not; an event is carried out once, on its
process, and noted.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from kofn.run.commands import Commands
from kofn.run.controller_client import ControllerClient
from kofn.run.errors import RunError
from kofn.run.job_trial import JobTrial
from kofn.run.network import EmulatedHost, NetworkClient, ProcessSpec
from kofn.run.processes import Processes, ProcessState
from kofn_common.config.interventions import EventSection, LinkSection
from kofn_common.config.job import JobSection
from kofn_common.config.network import NetworkSection as Settings
from kofn_common.config.schema import Config
from kofn_common.results.event_log import read_event_log
from kofn_common.results.folder import RunFolder
from tests.run.fake_run import append, simulate


class FakeNetwork:
    """Ends processes when asked."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.shaped: list[tuple[str, float | None]] = []
        self.closing = ExitStack()
        self._exits: dict[str, asyncio.Future[int]] = {}

    async def launch(self, program: ProcessSpec) -> int:
        self.launched.append(program.name)
        self._exits[program.name] = asyncio.get_running_loop().create_future()
        return 1

    async def exit_of(self, name: str) -> int:
        return await asyncio.shield(self._exits[name])

    async def shape(self, host: str, mbps: float | None) -> None:
        self.shaped.append((host, mbps))

    async def kill(self, name: str) -> None:
        self.exit(name, -9)

    def exit(self, name: str, code: int) -> None:
        self._exits[name].set_result(code)

    def died(self, name: str, code: int) -> RunError:
        return RunError(f"{name} ended with exit code {code} (its log)")


class FakeInspector:
    """Keeps the objectives that it is given."""

    def __init__(self, answer: str | None = None) -> None:
        self.objectives: list[tuple[int, str]] = []
        self._answer = answer

    async def set_objective(self, job: int, objective: str) -> str | None:
        self.objectives.append((job, objective))
        return self._answer


def program(name: str, *, endless: bool = False) -> ProcessSpec:
    return ProcessSpec(name=name, node="h1", argv=["x"], log=Path("x.log"), cwd=Path(), endless=endless)


def in_loop(test: Callable[[FakeNetwork, Processes], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        network = FakeNetwork()
        processes = Processes(cast(NetworkClient, network))
        with network.closing:
            await test(network, processes)
        processes.forget()

    asyncio.run(run())


def test_exit_code_0_is_no_failure_and_another_is() -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        await processes.launch(program("worker-0"))
        await processes.launch(program("worker-1"))
        assert await processes.ended(0.01) == []
        network.exit("worker-1", 0)
        await asyncio.sleep(0)
        assert await processes.ended(1.0) == ["worker-1"]
        assert processes.state("worker-1") is ProcessState.DONE
        network.exit("worker-0", -9)
        await asyncio.sleep(0)
        with pytest.raises(RunError, match="worker-0 ended with exit code -9"):
            await processes.ended(1.0)

    in_loop(test)


def test_processes_that_fail_together_are_all_named() -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        for name in ("worker-0", "worker-1", "worker-2"):
            await processes.launch(program(name))
        network.exit("worker-0", -9)
        asyncio.get_running_loop().call_later(0.05, network.exit, "worker-1", -9)
        with pytest.raises(RunError, match=r"worker-0 .*\n.*worker-1 with exit code -9") as caught:
            await processes.ended(1.0)
        assert "worker-2" not in str(caught.value)

    in_loop(test)


def test_controller_that_ends_is_always_a_failure() -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        await processes.launch(program("controller", endless=True))
        network.exit("controller", 0)
        with pytest.raises(RunError, match="controller ended with exit code 0"):
            await processes.ended(1.0)

    in_loop(test)


def test_killed_process_is_no_failure_and_may_be_restarted() -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        await processes.launch(program("switch", endless=True))
        await processes.kill("switch")
        assert processes.state("switch") is ProcessState.KILLED
        assert await processes.ended(0.01) == [], "ended() must return at once without processes"
        await processes.restart("switch")
        assert network.launched == ["switch", "switch"]
        network.exit("switch", -9)
        with pytest.raises(RunError, match="switch ended with exit code -9"):
            await processes.ended(1.0)

    in_loop(test)


def test_kill_of_a_process_that_does_not_die_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.run.processes.KILL_TIMEOUT_S", 0.01)
    monkeypatch.setattr(FakeNetwork, "kill", lambda self, name: asyncio.sleep(0))

    async def test(network: FakeNetwork, processes: Processes) -> None:
        await processes.launch(program("worker-0"))
        with pytest.raises(RunError, match="worker-0 was not gone"):
            await processes.kill("worker-0")

    in_loop(test)


HOSTS = [
    (f"h{rank + 1}", EmulatedHost(ip="", mac="", management="", port=rank + 1, interface="", mbps=40.0))
    for rank in range(3)
]


async def started(
    tmp_path: Path,
    network: FakeNetwork,
    processes: Processes,
    *events: EventSection,
    links: tuple[LinkSection, ...] = (),
    start_workers: int = 3,
    prefix: str = "",
) -> tuple[RunFolder, JobTrial]:
    folder = RunFolder.create(tmp_path / "run", ["all"])
    config = Config(job=JobSection(workers=3, start_workers=start_workers), event=events, link=links)
    (entry,) = folder.jobs[0].trials
    training = JobTrial(config, entry, processes, cast(NetworkClient, network), hosts=HOSTS, prefix=prefix, title="all")
    network.closing.callback(training.view.close)
    await training.start(Commands(network=Settings(), topology=tmp_path, certificates=None), folder.jobs[0])
    return folder, training


def test_story_is_carried_out(tmp_path: Path) -> None:
    events = [
        EventSection(at_iteration=1, objective="fixed:2"),
        EventSection(at_iteration=2, kill="worker-0"),
        EventSection(at_iteration=2, start="worker-0", after_s=0.05),
        EventSection(at_iteration=2, start="worker-2"),
        EventSection(at_iteration=900, kill="worker-1"),
    ]

    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes, *events, start_workers=2, prefix="job-1-")
        inspector = FakeInspector()
        await processes.launch(program("controller", endless=True))
        assert network.launched == ["job-1-worker-0", "job-1-worker-1", "controller"], "the third worker joins late"
        append(folder, 0, *simulate().lines[0][:2])
        await training.step(cast(ControllerClient, inspector))
        assert inspector.objectives == [(1, "fixed:2")]
        assert processes.state("job-1-worker-0") is ProcessState.KILLED
        assert network.launched[3:] == ["job-1-worker-2"]
        assert training.view.workers[0].state == "killed"
        await asyncio.sleep(0.06)
        await training.step(cast(ControllerClient, inspector))
        assert network.launched[4:] == ["job-1-worker-0"]
        for rank in range(3):
            network.exit(f"job-1-worker-{rank}", 0)
        await processes.ended(1.0)
        assert not training.going_on()
        training.conclude()
        assert [entry.words for entry in read_event_log(folder.jobs[0].trials[0].events)] == [
            "objective fixed:2 set at iteration 2",
            "worker-0 killed at iteration 2",
            "worker-2 started at iteration 2",
            "worker-0 started at iteration 2",
            "worker-1 not killed: no worker finished iteration 900",
        ]
        assert len(training.view.news()) == 5

    in_loop(test)


def test_objective_changes_in_the_journal_are_reported(tmp_path: Path) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes)
        note = {"time": 1.0, "job": 1, "iteration": 7, "objective": "fixed:2"}
        lines = [note | {"planned": False}, note | {"planned": True}, note | {"job": 2, "planned": False}]
        folder.jobs[0].trials[0].decisions.write_text("".join(json.dumps(line) + "\n" for line in lines))
        await training.step(cast(ControllerClient, FakeInspector()))
        with folder.jobs[0].trials[0].decisions.open("a") as journal:
            journal.write(json.dumps(note | {"fault": "objective 'fixed:2' failed"}) + "\n")
        training.conclude()
        assert [line.partition("event: ")[2] for line in training.view.news()] == [
            "objective fixed:2 set by hand at iteration 7",
            "objective 'fixed:2' failed at iteration 7; k stays as it is",
        ]

    in_loop(test)


def test_links_change_their_rate_during_a_run_and_start_each_pass_with_the_first(tmp_path: Path) -> None:
    links = (
        LinkSection(workers=(0, 2), mbps=10.0, at_iteration=2),
        LinkSection(workers=(2,), mbps=20.0, at_iteration=2, after_s=0.05),
        LinkSection(workers=(2,), mbps=5.0, at_iteration=9),
    )

    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes, links=links)
        assert network.shaped == [("h1", 40.0), ("h3", 40.0)], (
            "links must be shaped again, because an earlier trial may have changed them"
        )
        append(folder, 0, simulate().lines[0][0])
        await training.step(cast(ControllerClient, FakeInspector()))
        assert network.shaped[2:] == []
        append(folder, 0, simulate().lines[0][1])
        await training.step(cast(ControllerClient, FakeInspector()))
        assert network.shaped[2:] == [("h1", 10.0), ("h3", 10.0)]
        await asyncio.sleep(0.06)
        await training.step(cast(ControllerClient, FakeInspector()))
        assert network.shaped[4:] == [("h3", 20.0)]
        training.conclude()
        assert [entry.words for entry in read_event_log(folder.jobs[0].trials[0].events)] == [
            "link of worker-0, worker-2 (10 Mbit/s) set at iteration 2",
            "link of worker-2 (20 Mbit/s) set at iteration 2",
            "link of worker-2 (5 Mbit/s) not set: no worker finished iteration 9",
        ]

    in_loop(test)


KILL_AND_START = [
    EventSection(at_iteration=2, kill="worker-0"),
    EventSection(at_iteration=2, start="worker-0", after_s=0.05),
]


async def killed_and_back(tmp_path: Path, network: FakeNetwork, processes: Processes) -> tuple[RunFolder, JobTrial]:
    folder, training = await started(tmp_path, network, processes, *KILL_AND_START)
    append(folder, 0, *simulate().lines[0][:2])
    await training.step(cast(ControllerClient, FakeInspector()))
    await asyncio.sleep(0.06)
    await training.step(cast(ControllerClient, FakeInspector()))
    assert processes.state("worker-0") is ProcessState.RUNNING
    return folder, training


def test_worker_that_returns_after_the_end_is_excused(tmp_path: Path) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await killed_and_back(tmp_path, network, processes)
        for name, code in (("worker-1", 0), ("worker-2", 0), ("worker-0", 1)):
            network.exit(name, code)
        await processes.ended(1.0, excused=training.excuse)
        assert not training.going_on()
        late = read_event_log(folder.jobs[0].trials[0].events)[-1]
        assert late.words == "worker-0 came too late: the training was over ((no log was written))"

    in_loop(test)


@pytest.mark.parametrize("what", ["others train", "it has trained", "it was never killed"])
def test_other_failures_are_not_excused(tmp_path: Path, what: str) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await killed_and_back(tmp_path, network, processes)
        if what == "it has trained":
            append(folder, 0, simulate().lines[0][5])
        failing = "worker-1" if what == "it was never killed" else "worker-0"
        ended = [name for name in ("worker-0", "worker-1", "worker-2") if name != failing]
        for name in ended[: 1 if what == "others train" else 2]:
            network.exit(name, 0)
        network.exit(failing, 1)
        with pytest.raises(RunError, match=f"{failing} ended with exit code 1"):
            await processes.ended(1.0, excused=training.excuse)

    in_loop(test)


def test_no_worker_is_started_after_the_end(tmp_path: Path) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes, *KILL_AND_START)
        append(folder, 0, *simulate().lines[0][:2])
        await training.step(cast(ControllerClient, FakeInspector()))
        assert training.going_on()
        for name in ("worker-1", "worker-2"):
            network.exit(name, 0)
        await processes.ended(1.0)
        assert not training.going_on()
        training.conclude()
        entry = read_event_log(folder.jobs[0].trials[0].events)[-1]
        assert entry.words == "worker-0 not started: the training was over"

    in_loop(test)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (EventSection(at_iteration=1, kill="worker-0"), "worker-0 not killed: it has ended"),
        (EventSection(at_iteration=1, start="worker-0"), "worker-0 not started: it has ended"),
        (EventSection(at_iteration=1, start="worker-1"), "worker-1 not started: it runs"),
        (EventSection(at_iteration=1, objective="all"), "objective all not set: the controller does not answer"),
    ],
)
def test_impossible_event_is_reported(tmp_path: Path, event: EventSection, words: str) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes)
        training._schedule._waiting = [event]
        await processes.launch(program("controller", endless=True))
        network.exit("worker-0", 0)
        await processes.ended(1.0)
        append(folder, 0, simulate().lines[0][0])
        await training.step(cast(ControllerClient, FakeInspector("the controller does not answer")))
        (entry,) = read_event_log(folder.jobs[0].trials[0].events)
        assert entry.words == words

    in_loop(test)


def test_objective_without_a_controller_is_not_set(tmp_path: Path) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes, EventSection(at_iteration=1, objective="all"))
        append(folder, 0, simulate().lines[0][0])
        inspector = FakeInspector()
        await training.step(cast(ControllerClient, inspector))
        (entry,) = read_event_log(folder.jobs[0].trials[0].events)
        assert entry.words == "objective all not set: the controller does not run"
        assert inspector.objectives == []

    in_loop(test)


def test_run_without_progress_ends_with_the_reason(tmp_path: Path) -> None:
    async def test(network: FakeNetwork, processes: Processes) -> None:
        folder, training = await started(tmp_path, network, processes)
        append(folder, 0, simulate().lines[0][0])
        await training.step(cast(ControllerClient, FakeInspector()))
        training.view.running = lambda: training.view.last_news + 61.0
        with pytest.raises(RunError, match=r"no worker finished an iteration for 60 s; .*; worker 0 at iteration 1"):
            await training.step(cast(ControllerClient, FakeInspector()))

    in_loop(test)
