"""Read a run's folder as the live page's header and frames, during the run or after it."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kofn.report.planned_changes import describe_fault
from kofn.web.frames import Frame, JobHeader, RunHeader
from kofn.web.timeline import Timeline
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.results.record import SIMULATED
from kofn_host.workload import metric_of


class RunReader:
    """The frames of a run, collected as its files grow.

    reader = RunReader(Path("runs/latest"), over=lambda: True)
    reader.poll()
    reader.header, reader.frames
    """

    def __init__(self, path: Path, *, over: Callable[[], bool], clock: Callable[[], float] = time.time) -> None:
        """Open a run's folder. `over` returns whether the run has ended, `clock` returns the Unix time. Raise
        ConfigError if the folder is not the folder of one run."""
        self.frames: list[bytes] = []
        """All frames so far as JSON, trial by trial. Within a trial the jobs alternate: each poll appends the new
        frames of the first job, then those of the next job."""
        self.newest: dict[int, Frame] = {}
        """The newest frame of each job."""
        self.watchers = 0
        """The number of browsers that receive the frames."""
        self._over, self._clock = over, clock
        self.over = False
        folder = RunFolder.open(path)
        self._configs = folder.configs()
        hosts, leaves = hosts_of(folder.topology), leaves_of(folder.topology)
        self.header = _header(folder, self._configs, hosts, leaves)
        self._trials = [
            [
                Timeline(entry, config, header, trial=number)
                for entry, config, header in zip(entries, self._configs, self.header.jobs, strict=True)
            ]
            for number, entries in enumerate(folder.trials)
        ]
        self._begun = [[entry.status for entry in entries] for entries in folder.trials]
        self._current = 0

    def poll(self) -> None:
        """Read the new lines of the current trial's files, and append the frames that are due. Continue with the next
        trial as soon as the next trial has begun."""
        if self.over:
            return
        over = self._over()
        while True:
            ended = over or self._next_has_begun()
            for line in self._trials[self._current]:
                for frame in line.poll(self._clock(), over=ended):
                    self.newest[frame.job] = frame
                    self.frames.append(msgspec.json.encode(frame))
            if not ended:
                return
            self.close()
            if self._current + 1 == len(self._trials):
                self.over = over
                return
            self._current += 1

    def close(self) -> None:
        """Close the current trial's files; the frames stay."""
        for line in self._trials[self._current]:
            line.close()

    @property
    def waiting(self) -> str:
        """Return the controller's reason why the current trial has no frame yet; empty if the trial has frames or the
        controller gives no reason."""
        return next((line.waiting for line in self._trials[self._current] if line.waiting), "")

    def _next_has_begun(self) -> bool:
        following = self._begun[self._current + 1 : self._current + 2]
        return any(path.exists() for paths in following for path in paths)


def hosts_of(topology: Path) -> list[tuple[str, float | None]]:
    """Return the hosts in the order of their workers, with the rates of their links in Mbit/s (None: not shaped); empty
    for a run without a network."""
    if not topology.exists():
        return []
    document = json.loads(topology.read_text())
    rates = {link[0]: link[3] if len(link) > 3 else None for link in document["links"]}
    return [(host, rates.get(host)) for host in document["hosts"]]


def leaves_of(topology: Path) -> dict[str, float | None]:
    """Return the rates of the leaves' uplinks in Mbit/s (None: not shaped), by rack; empty for a single switch."""
    if not topology.exists():
        return {}
    hosts, links = (json.loads(topology.read_text())[name] for name in ("hosts", "links"))
    nodes = [[end.partition("-p")[0] for end in link[:2]] for link in links]
    at = {host: switch for pair in nodes for host, switch in (pair, pair[::-1]) if host in hosts}
    leaves = dict.fromkeys(at[host] for host in hosts)
    rates = [link[3] if len(link) > 3 else None for link in links]
    between = [(pair, rate) for pair, rate in zip(nodes, rates, strict=True) if not at.keys() & pair]
    return {leaf: rate for leaf in leaves for pair, rate in between if leaf in pair}


def _header(
    folder: RunFolder,
    configs: Sequence[Config],
    hosts: Sequence[tuple[str, float | None]],
    leaves: Mapping[str, float | None],
) -> RunHeader:
    record, first, jobs = folder.record(), 0, []
    for config in configs:
        own = hosts[first : first + config.job.workers]
        first += len(own)
        jobs.append(
            JobHeader(
                id=config.job.id,
                workers=config.job.workers,
                collective=config.job.collective,
                metric=metric_of(config),
                max_iterations=config.run.max_iterations,
                hosts=tuple(host for host, _ in own),
                link_mbps=tuple(rate for _, rate in own),
                leaves=tuple(leaves),
                uplink_mbps=tuple(leaves.values()),
                faults=tuple(map(describe_fault, config.fault)),
            )
        )
    return RunHeader(
        name=configs[0].run.name,
        folder=str(folder.path),
        started=record.started,
        target="" if record.driver == SIMULATED else record.target,
        trials=tuple(objective for objective, _ in record.trials),
        jobs=tuple(jobs),
    )
