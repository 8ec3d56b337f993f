"""One trial in an existing network: switch, controller and one training a job, until the last worker's end.

await Trial(network, commands, folder, configs, number=0, native=native, ...).run(check=True, quiet=False)
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rich.console import Console

from kofn.run.commands import ENVIRONMENT, Commands
from kofn.run.controller_client import ControllerClient
from kofn.run.display import Display, say
from kofn.run.errors import RunError
from kofn.run.job_trial import JobTrial
from kofn.run.native import NativeBuild
from kofn.run.network import ROOT, NetworkClient, ProcessSpec
from kofn.run.page import Watched
from kofn.run.processes import Processes
from kofn.run.resume import Resumed
from kofn.run.sampler import Sampler
from kofn.run.switch_identity import answering
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.running_clock import running_timeout

START_TIMEOUT_S = 60.0
POLL_S = 0.2
EVENT_POLL_S = 0.02
"""The interval between two polls while an event may still come. It is short, so that an event happens at its iteration
and not many iterations later."""


class Trial:
    """Runs one objective."""

    def __init__(
        self,
        network: NetworkClient,
        commands: Commands,
        folder: RunFolder,
        configs: Sequence[Config],
        *,
        number: int,
        native: NativeBuild,
        console: Console,
        watched: Watched,
    ) -> None:
        self._network, self._commands, self._folder, self._console = network, commands, folder, console
        self._entries = folder.trials[number]
        self._limits, self._native, self._watched = configs[0].run, native, watched
        self._switches = configs[0].switches
        self._processes = Processes(network)
        hosts = list(network.ready.hosts.items())
        workers = iter(hosts)  # job by job; the hosts of parameter servers follow
        servers = iter(hosts[sum(config.job.workers for config in configs) :])
        self._trainings = [
            JobTrial(
                config,
                entry,
                self._processes,
                network,
                hosts=[next(workers) for _ in range(config.job.workers)],
                server=next(servers) if load_collective(config.job.collective).server else None,
                prefix=_prefix(folder, config.job.id),
                title=title,
            )
            for config, entry, title in zip(configs, self._entries, _titles(folder, number), strict=True)
        ]
        for training in self._trainings:
            training.neighbours = [other.view for other in self._trainings if other is not training]

    async def run(self, *, check: bool, quiet: bool, resumed: Sequence[Resumed] = ()) -> None:
        """Start everything, wait for the workers, stop everything. Raise RunError for a failed
        process or a long stall.

        `resumed` has the point at which each job continues; if it is empty, all jobs begin.
        """
        begin = time.monotonic()
        client = ControllerClient(self._commands.loopback(), certificates=self._commands.certificates)
        try:
            async with client, running_timeout(self._limits.trial_deadline_s):
                await self._start_control_plane(client)
                if check:
                    await self._check(quiet=quiet)
                await self._native.wait()
                servers = await self._start_servers()
                await self._train(client, resumed, quiet=quiet)
        except TimeoutError:
            raise RunError(
                f"trial {self._entries[0].objective!r} was not over after {time.monotonic() - begin:.0f} s "
                f"(run.trial_deadline_s); logs: {self._entries[0].shared / 'logs'}"
            ) from None
        finally:
            self._processes.forget()
        await self._network.end(servers)
        await self._network.end(["controller"])
        await self._network.end(self._switches)

    async def _start_control_plane(self, client: ControllerClient) -> None:
        switches = [await self._start_switch(number, name) for number, name in enumerate(self._switches)]
        for switch, address in zip(switches, self._commands.p4runtime(), strict=True):
            await self._until_up(switch, self._answers(address), f"the P4Runtime server of {switch.name}")
        configs = [job.effective for job in self._folder.jobs]
        controller = await self._launch("controller", self._commands.controller(configs, self._entries[0]))
        await self._until_up(controller, client.ready(), "the controller and its switch")

    async def _answers(self, address: str) -> AsyncIterator[bool]:
        """Yield repeatedly whether a switch answers, and note which switch it is."""
        while True:
            if (found := await answering(self._commands.network.target, address)) is not None:
                self._folder.note_switch(str(found))
            yield found is not None

    async def _start_switch(self, number: int, name: str) -> ProcessSpec:
        """Start a switch by its number and name."""
        network, switch = self._commands.network, self._network.ready.switches[number]
        rules = [rule for training in self._trainings for rule in training.port_rules(switch, number - 1)]
        pcap = self._entries[0].shared / "pcap" if network.pcap else None
        if pcap is not None:
            pcap.mkdir(parents=True, exist_ok=True)
        counts = self._entries[0].counts(name) if network.target == "embedded" else None
        if counts is not None:
            self._network.counts[switch.name] = counts
        argv = self._commands.switch(
            switch.interfaces,
            number=number,
            faults=rules,
            fault_seed=self._limits.seed,
            pcap=pcap,
            counts=counts,
            slowest_mbps=self._network.ready.slowest_mbps,
        )
        return await self._launch(name, argv, switch.name)

    async def _start_servers(self) -> list[str]:
        """Start the parameter server of each job that has a parameter server; return the servers' names."""
        programs = [program for training in self._trainings if (program := training.programs.server(self._commands))]
        for program in programs:
            await self._processes.launch(program)
            await self._until_up(program, _serves(program), f"the parameter server at {program.node}")
        return [program.name for program in programs]

    async def _check(self, *, quiet: bool) -> None:
        failed = []
        async for check in self._network.check():
            if not (check.ok and quiet):
                say(self._console, f"  {'ok    ' if check.ok else 'FAILED'} {check.name}: {check.detail}")
            failed += [] if check.ok else [check.name]
        if failed:
            raise RunError(f"the network is not as configured: {', '.join(failed)}")

    async def _train(self, client: ControllerClient, resumed: Sequence[Resumed], *, quiet: bool) -> None:
        before = self._network.link_bytes()
        for number, (training, job) in enumerate(zip(self._trainings, self._folder.jobs, strict=True)):
            await training.start(self._commands, job, resumed[number] if resumed else None)
            if resumed:
                await training.resume(client, resumed[number])
        sampler = Sampler(self._network, self._commands.network, self._trainings, self._watched)
        followers = [
            asyncio.create_task(sampler.run()),
            *(asyncio.create_task(training.follow(client)) for training in self._trainings),
        ]
        try:
            with Display(self._console, [training.view for training in self._trainings], quiet=quiet) as display:
                await self._supervise(client, followers, display)
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
        after = self._network.link_bytes()
        for training in self._trainings:
            training.count_links(before, after)
            await training.count(client)

    async def _supervise(
        self, client: ControllerClient, followers: Sequence["asyncio.Task[None]"], display: Display
    ) -> None:
        """Wait until no worker of any job runs. Raise RunError at the first failure or long stall."""
        while any(training.going_on() for training in self._trainings):
            eventful = any(training.eventful for training in self._trainings)
            await self._processes.ended(EVENT_POLL_S if eventful else POLL_S, excused=self._excuse)
            for training in self._trainings:
                await training.step(client)
            for task in followers:
                if task.done():
                    task.result()  # a follower ends only by a failure
            display.show()
        for training in self._trainings:
            training.conclude()

    def _excuse(self, name: str) -> bool:
        return any(training.excuse(name) for training in self._trainings)

    async def _launch(self, name: str, argv: Sequence[str], node: str = ROOT) -> ProcessSpec:
        log = self._entries[0].shared_log(name)
        program = ProcessSpec(name=name, node=node, argv=argv, log=log, cwd=Path.cwd(), env=ENVIRONMENT, endless=True)
        await self._processes.launch(program)
        return program

    async def _until_up(self, program: ProcessSpec, up: AsyncIterator[bool], what: str) -> None:
        """Wait until `up` yields True. Raise RunError if a process ends first, or the wait takes too long."""
        try:
            async with running_timeout(START_TIMEOUT_S):
                async for ready in up:
                    if ready:
                        return
                    await self._processes.ended(POLL_S)
        except TimeoutError:
            raise RunError(f"{what} did not answer within {START_TIMEOUT_S:.0f} s; see {program.log}") from None


async def _serves(server: ProcessSpec) -> AsyncIterator[bool]:
    while True:
        yield server.log.exists() and b"serving job" in server.log.read_bytes()


def _prefix(folder: RunFolder, job: int) -> str:
    return "" if len(folder.jobs) == 1 else f"job-{job}-"


def _titles(folder: RunFolder, number: int) -> list[str]:
    """Return the title of each job's view."""
    title = f"{folder.trials[number][0].objective} ({number + 1} of {len(folder.trials)})"
    return [title if len(folder.jobs) == 1 else f"{title}, job {job.id}" for job in folder.jobs]
