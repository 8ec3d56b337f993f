"""The programs of one job in one trial, as its hosts run them: its workers, its server, one worker alone."""

import os
from collections.abc import Sequence
from pathlib import Path

from kofn.run import accelerators
from kofn.run.commands import ENVIRONMENT, Commands
from kofn.run.network import EmulatedHost, ProcessSpec
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.objectives import check_objective
from kofn_common.config.schema import Config
from kofn_common.results.folder import JobFolder, TrialFolder


class JobPrograms:
    """The programs of a job.

    `hosts` are the workers' hosts by rank; `server` is the parameter server's host, if the job has a parameter server.
    `prefix` distinguishes a job's processes from another job's processes.
    """

    def __init__(
        self,
        config: Config,
        folder: TrialFolder,
        *,
        hosts: Sequence[tuple[str, EmulatedHost]],
        server: tuple[str, EmulatedHost] | None,
        prefix: str,
    ) -> None:
        self.hosts = hosts
        self._config, self._folder, self._server, self._prefix = config, folder, server, prefix
        self.workers = [self.process(f"worker-{rank}") for rank in range(config.job.workers)]
        """The workers' processes, by rank."""

    def process(self, name: str) -> str:
        """Return a process's name in the network, from the name that an event uses."""
        return name if name in self._config.control_plane else self._prefix + name

    def server(self, commands: Commands) -> ProcessSpec | None:
        """Return the parameter server, if there is one. The server starts before the workers, and ends after the
        workers."""
        if self._server is None:
            return None
        node, host = self._server
        job = self._config.job
        fixed = check_objective(self._folder.objective, job.workers, "run.trials")
        k = fixed.k if fixed else job.workers
        argv = commands.server(load_collective(job.collective).server, job, host.ip, self._addresses, k)
        folders = filter(None, (job.modules, os.environ.get("PYTHONPATH")))
        env = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(folders)}
        name, log = self.process("server"), self._folder.log("server")
        return ProcessSpec(name=name, node=node, argv=argv, log=log, cwd=Path.cwd(), env=env, endless=True)

    @property
    def nodes(self) -> list[str]:
        """The names of the workers' hosts by rank, then the name of the parameter server's host, if there is a
        parameter server."""
        return [node for node, _ in (*self.hosts, *([self._server] if self._server else []))]

    def alone(self, commands: Commands, job: JobFolder) -> ProcessSpec:
        """Return the process of one worker that trains without the others, during the last trial."""
        job.alone.path.mkdir(parents=True, exist_ok=True)
        job.alone.metrics(0).unlink(missing_ok=True)  # a resumed run may have this file already
        argv, log = commands.alone(job.effective, job.alone.metrics(0)), job.alone.path / "alone.log"
        node, _ = self.hosts[0]  # where worker 0 trains with the others
        return ProcessSpec(name=self.process("alone"), node=node, argv=argv, log=log, cwd=Path.cwd(), env=ENVIRONMENT)

    def worker(self, commands: Commands, job: JobFolder, rank: int) -> ProcessSpec:
        """Return the process of this rank's worker."""
        argv, more = self._worker(commands, job, rank)
        log, env = self._folder.log(f"worker-{rank}"), {**ENVIRONMENT, **more}
        node, _ = self.hosts[rank]
        return ProcessSpec(name=self.workers[rank], node=node, argv=argv, log=log, cwd=Path.cwd(), env=env)

    def _worker(self, commands: Commands, job: JobFolder, rank: int) -> tuple[list[str], dict[str, str]]:
        """Return a worker's command line, and its additional environment."""
        (node, host), metrics, torch = self.hosts[rank], self._folder.metrics(rank), self._config.torch
        if torch.script is None:
            more = [*self._summed(), *self._checkpoints()]
            return commands.worker(job.effective, rank, host.management, metrics, more), {}
        argv = commands.torchrun(torch, rank, self._config.job.workers, self._addresses[0])
        environment = commands.torch_environment(job.effective, rank, f"{node}-eth0", host.management, metrics)
        environment |= {"KOFN_WORKERS": ",".join(self._addresses), "KOFN_OBJECTIVE": self._folder.objective}
        environment |= accelerators.visible(torch, rank)
        return argv, environment | ({"KOFN_SERVICE": self._service} if self._service else {})

    def _checkpoints(self) -> list[str]:
        """Return a worker's flags about checkpoints, if there are any."""
        folder = self._folder.checkpoints.resolve()
        return ["--checkpoints", str(folder)] if self._config.run.checkpoint_every else []

    def _summed(self) -> list[str]:
        """Return a worker's flags about the collective, if that is not the switch."""
        if not load_collective(self._config.job.collective).ledger:
            return [part for address in self._addresses for part in ("--worker", address)]
        return ["--service", self._service] if self._service else []

    @property
    def _service(self) -> str:
        """The address of the server that takes the switch's part; empty: the switch sums."""
        return self._server[1].ip if self._server and load_collective(self._config.job.collective).ledger else ""

    @property
    def _addresses(self) -> list[str]:
        """The workers' addresses on the data network, by rank."""
        return [host.ip for _, host in self.hosts]
