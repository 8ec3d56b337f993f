"""One job in one trial: its workers' programs, its events, and its live view."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kofn.run.commands import Commands
from kofn.run.controller_client import ControllerClient
from kofn.run.errors import RunError
from kofn.run.job_programs import JobPrograms
from kofn.run.live import TrialView
from kofn.run.network import EmulatedHost, EmulatedSwitch, NetworkClient
from kofn.run.port_faults import port_rules
from kofn.run.processes import Processes, ProcessState
from kofn.run.resume import Resumed
from kofn.run.schedule import Due, Schedule, action, late_joiners
from kofn_common.config.interventions import CpuSection, LinkSection
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.folder import JobFolder, TrialFolder
from kofn_common.results.link_bytes import LinkBytes, write_links
from kofn_common.results.logs import tail
from kofn_common.results.objective_notes import objective_notes
from kofn_common.results.tail import LineTail
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.document import document
from kofn_host.workload import metric_of
from kofn_switch.engine.faults import FaultRule

PROGRESS_S = 60.0
"""A trial is given up when no worker finishes an iteration for this time."""

SCRIPT_S = 60.0
"""The additional time for a script, which may do more between iterations: importing PyTorch alone takes long."""


class JobTrial:
    """A job's part of a trial.

    await training.start(commands, job)
    while training.going_on():
        await processes.ended(0.2)
        await training.step(client)
    """

    def __init__(
        self,
        config: Config,
        folder: TrialFolder,
        processes: Processes,
        network: NetworkClient,
        *,
        hosts: Sequence[tuple[str, EmulatedHost]],
        prefix: str,
        title: str,
        server: tuple[str, EmulatedHost] | None = None,
    ) -> None:
        """Prepare the job. `hosts` are the workers' hosts by rank; `prefix` distinguishes a job's processes from
        another job's processes.

        `server` is the host of the job's parameter server, if it has one.
        """
        self.config, self.folder = config, folder
        self.view = TrialView(
            folder,
            config.job.workers,
            title,
            metric=metric_of(config),
            compresses=config.compress.compresses,
            script=Path(config.torch.script) if config.torch.script else None,
        )
        self.neighbours: list[TrialView] = []
        """The other jobs' views, which also show interventions on switch and controller."""
        self._processes, self._network = processes, network
        self.programs = JobPrograms(config, folder, hosts=hosts, server=server, prefix=prefix)
        self._schedule = Schedule([*config.event, *config.link, *config.cpu])
        self._journal = LineTail(folder.decisions)
        self._started_at: dict[str, int] = {}  # by worker: its newest iteration when an event started the worker
        self._shares: dict[str, float] = {}  # by process: its share of a processor, also after a restart
        self._workers = self.programs.workers

    def port_rules(self, switch: EmulatedSwitch, rack: int) -> Iterator[FaultRule]:
        """Yield a switch's rules for this job's packets; `rack` is the rack of a leaf."""
        hosts = enumerate(host for _, host in self.programs.hosts)
        ports = {rank: host.port for rank, host in hosts if host.switch == switch.name}
        uplinks = {} if switch.uplink is None else {rack: switch.uplink}
        return port_rules(self.config.fault, ports, uplinks)

    def count_links(self, before: LinkBytes, after: LinkBytes) -> None:
        """Record the bytes over the links of this job's hosts, and over all uplinks, between two counts."""
        uplinks = sorted({host.switch for _, host in self.programs.hosts} & before.keys())
        write_links(self.folder.links, [*self.programs.nodes, *uplinks], before, after)

    async def start(self, commands: Commands, job: JobFolder, resumed: Resumed | None = None) -> None:
        """Reset the links to their first rates, then launch every worker that does not join late.

        If run.alone asks for it, one worker also trains alone, during the last trial.
        """
        for rank in sorted({rank for link in self.config.link for rank in link.workers}):
            node, host = self.programs.hosts[rank]
            await self._network.shape(node, host.mbps)
        absent = self._absent(resumed.done if resumed else ())
        for rank, name in enumerate(self._workers):
            self._processes.keep(self.programs.worker(commands, job, rank))
            if f"worker-{rank}" not in absent:
                await self._processes.restart(name)
        if self.config.run.alone and self.folder is job.trials[-1]:
            await self._processes.launch(self.programs.alone(commands, job))
        self.view.begin()

    def _absent(self, done: Sequence[LoggedEvent]) -> set[str]:
        """Return the workers that do not run at first: workers that join late, and workers that an event had killed."""
        absent = late_joiners(self.config.event)
        for event in done:
            if event.action == "kill":
                absent.add(event.name)
            elif event.action == "start":
                absent.discard(event.name)
        return absent

    async def resume(self, client: ControllerClient, resumed: Resumed) -> None:
        """Repeat the changes that events had made before the checkpoint, because the new network lacks these changes.
        The repeated events get no lines; one line tells that the run was resumed."""
        for event in self._schedule.resume([(logged.action, logged.name) for logged in resumed.done]):
            if action(event)[0] not in ("kill", "start"):
                await self._carry_out(event, client)
        self.view.poll()
        self._write("resume", resumed.words, "")

    def going_on(self) -> bool:
        """Return whether a worker runs, or whether a worker is certain to start before the training is over."""
        running = self._processes.running([*self._workers, self.programs.process("alone")])
        return running or (self._schedule.starting and not self._over())

    def _over(self) -> bool:
        """Return whether the training is over. Workers end together: when one worker has ended and no worker runs, no
        worker can join."""
        ended = any(self._processes.state(name) is ProcessState.DONE for name in self._workers)
        return ended and not self._processes.running(self._workers)

    def excuse(self, name: str) -> bool:
        """Return whether a worker's failure is excused because the others ended before the worker had joined; log an
        excused failure."""
        if name not in self._started_at:
            return False
        others = [other for other in self._workers if other != name]
        ended = any(self._processes.state(other) is ProcessState.DONE for other in others)
        self.view.poll()
        rank = self._workers.index(name)
        if not ended or self._processes.running(others) or self._finished(rank) != self._started_at[name]:
            return False
        words = tail(self.folder.log(f"worker-{rank}"), 1).strip()
        self._write("late", f"worker-{rank}", f"the training was over ({words})")
        return True

    def _finished(self, rank: int) -> int:
        """Return the newest iteration of a worker."""
        return self.view.workers[rank].iteration

    @property
    def eventful(self) -> bool:
        """Whether an event may still come."""
        return bool(self._schedule.waiting)

    async def step(self, client: ControllerClient) -> None:
        """Read the workers' new lines, carry out due events, and watch for a stall. Raise RunError if the stall lasts
        too long."""
        self.view.poll()
        self._tell_objectives()
        self._schedule.reached(self._iteration, time.monotonic())
        for event in self._schedule.due(time.monotonic()):
            self._log_event(event, await self._carry_out(event, client))
        for worker, name in zip(self.view.workers, self._workers, strict=True):
            state = self._processes.state(name)
            worker.process = {ProcessState.ABSENT: "not started", ProcessState.KILLED: "killed"}.get(state, "")
        running = self._processes.running(self._workers)
        self.view.watch_stall(expected=running)
        if running:
            self._check_progress()

    def _tell_objectives(self) -> None:
        """Show objectives that an operator has set, and faults of an objective; events are shown already."""
        for note in objective_notes(self._journal, self.config.job.id):
            if not note.planned:
                self.view.happened(note.words)

    def conclude(self) -> None:
        """Log every event that never came."""
        self._tell_objectives()
        self._journal.close()
        for event in self._schedule.waiting:
            never = f"no worker finished iteration {event.at_iteration}"
            self._log_event(event, "the training was over" if event.at_iteration <= self._iteration else never)

    async def follow(self, client: ControllerClient) -> None:
        """Record the controller's statuses for the table and for the report, until cancelled."""
        async for status in client.statuses(self.config.job.id):
            self.view.update(status)
            self._record_status(status)

    async def count(self, client: ControllerClient) -> None:
        """Record a last status, with the switch's counters at the end."""
        self._record_status(await client.status(self.config.job.id))

    def _record_status(self, status: pb.Status | None) -> None:
        """Write a status. If the disk is full or no file can be opened, the run continues without this line."""
        if status is None:
            return
        with contextlib.suppress(OSError), self.folder.status.open("ab") as out:
            out.write(msgspec.json.encode({"time": time.time(), **document(status)}) + b"\n")

    async def _carry_out(self, event: Due, client: ControllerClient) -> str:
        """Carry out an event; return the reason if that is impossible, else an empty text."""
        if isinstance(event, LinkSection):
            for rank in event.workers:
                await self._network.shape(self.programs.hosts[rank][0], event.mbps)
            return ""
        if isinstance(event, CpuSection):
            workers = [self._workers[rank] for rank in event.workers]
            self._shares |= dict.fromkeys(workers, event.share)
            return "; ".join([why for name in workers if (why := await self._limit(name))])
        what, value = action(event)
        if what == "objective":
            if self._processes.state("controller") is not ProcessState.RUNNING:
                return "the controller does not run"
            return await client.set_objective(self.config.job.id, value) or ""
        return await self._kill_or_start(what, self.programs.process(value))

    async def _limit(self, name: str) -> str:
        """Give a process its share of a processor, if it runs; return why that is impossible, else an empty text."""
        if name not in self._shares or self._processes.state(name) is not ProcessState.RUNNING:
            return ""
        return await self._network.limit(name, self._shares[name])

    async def _kill_or_start(self, what: str, name: str) -> str:
        """Kill or start a process; return the reason if that is impossible, else an empty text."""
        state = self._processes.state(name)
        if what == "kill" and state is ProcessState.RUNNING:
            await self._processes.kill(name)
        elif what == "start" and state in (ProcessState.ABSENT, ProcessState.KILLED):
            if name in self._workers:
                self._started_at[name] = self._finished(self._workers.index(name))
            await self._processes.restart(name)
            return await self._limit(name)
        else:
            return {
                ProcessState.ABSENT: "it does not run",
                ProcessState.KILLED: "it does not run",
                ProcessState.RUNNING: "it runs",
            }.get(state, "it has ended")
        return ""

    def _log_event(self, event: Due, missed: str) -> None:
        what, name = action(event)
        words = self._write(what, name, missed)
        for view in self.neighbours if name in self.config.control_plane else ():
            view.remember(words)

    def _write(self, what: str, name: str, missed: str) -> str:
        """Write a line to events.jsonl and the screen; return its text."""
        entry = LoggedEvent(time=time.time(), iteration=self._iteration, action=what, name=name, missed=missed)
        with self.folder.events.open("ab") as out:
            out.write(msgspec.json.encode(entry) + b"\n")
            out.flush()
            os.fsync(out.fileno())  # so that a resumed run repeats no event
        self.view.happened(entry.words)
        return entry.words

    @property
    def _iteration(self) -> int:
        newest = self.view.newest
        return newest.iteration if newest else 0

    def _check_progress(self) -> None:
        """Check for progress; an event's delay or a long blocking extends the limit."""
        slowest_ms = max((entry.mean_ms + (entry.compute_ms or 0.0) for entry in self.config.straggler), default=0.0)
        slowest_ms += sum(shock.blocking_ms for shock in self.config.shock)
        delay_s = max((event.after_s for event in self.config.event), default=0.0)
        limit_s = PROGRESS_S + (SCRIPT_S if self.config.torch.script else 0.0)
        limit_s = max(limit_s + delay_s, 20 * slowest_ms / 1e3)
        if self.view.idle_s > limit_s:
            raise RunError(
                f"no worker finished an iteration for {limit_s:.0f} s; last: {self.view.headline()}; "
                f"{self.view.reason()}; logs: {self.folder.path / 'logs'}"
            )
