"""The layout of a run's results: which file is where, without the content of the files.

runs/NAME-YYYYmmdd-HHMMSS/
  config.toml topology.json     the configuration as given, and the hosts
  effective.toml                the same with every default and the command line's choices, as every process reads it
  run.json                      jobs, trials and their folders; how many trials ended, and why the run ended early;
                                versions and machine
  costs.json                    of a simulation: CPU times of a worker's steps
  boot.log                      the network's own log
  certs/                        certificates and tokens, during the run
  TRIAL/worker-R.jsonl, .npz     a worker's iterations, and the checksums of its gradients and results
  TRIAL/status.jsonl             the controller's view, about twice a second
  TRIAL/events.jsonl             events during the trial
  TRIAL/links.json               bytes of each host's link
  TRIAL/samples.jsonl            links and slots, several times a second
  TRIAL/checkpoints/             with run.checkpoint_every, the newest checkpoints (kofn run --resume)
  TRIAL/decisions.jsonl          the controller's journal
  TRIAL/logs/NAME.log            the output of every process
  TRIAL/logs/SWITCH.counts       the counters of the embedded switch's ports (kofn-switch --help)
  metrics.jsonl summary.json report.html
  alone/worker-0.jsonl           with run.alone, the training of one worker alone
  seed-N/                        with run.seeds, one whole run for each seed; summary.json and report.html cover all
  figures/NAME.svg, .pdf, .csv   the report's figures, and what they show as numbers

Where several jobs run, each has its own job-ID.toml and job-ID-effective.toml, and a trial's folder holds a folder
job-ID with the job's files; the files of all jobs (the controller's journal, logs of switch and controller) stay above.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.results.files import write_synced
from kofn_common.results.provenance import Provenance
from kofn_common.results.record import RunRecord, read_record

CERTIFICATES = "certs"
"""The folder of certificates in a run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFolder:
    """Results of one objective over one job's whole training."""

    path: Path
    objective: str
    shared: Path
    """The trial's folder: `path` in a run of one job; in a run of several jobs the parent of `path`, for all jobs."""

    @property
    def name(self) -> str:
        """The objective; if repeated, with its number: "fixed:2", "fixed:2-again-2"."""
        return self.objective + self.shared.name.removeprefix(folder_stem(self.objective))

    @property
    def status(self) -> Path:
        """The controller's statuses, one JSON object a line."""
        return self.path / "status.jsonl"

    @property
    def decisions(self) -> Path:
        """The controller's journal, one JSON object a line."""
        return self.shared / "decisions.jsonl"

    @property
    def links(self) -> Path:
        """Bytes to and from the switch by host, JSON; the file is missing if no bytes were counted."""
        return self.path / "links.json"

    @property
    def samples(self) -> Path:
        """Links and slots several times a second, one JSON object a line."""
        return self.path / "samples.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the job's checkpoints; missing without run.checkpoint_every."""
        return self.path / "checkpoints"

    @property
    def events(self) -> Path:
        """The events of the trial, one JSON object a line; the file is missing if the trial had no events."""
        return self.path / "events.jsonl"

    def metrics(self, rank: int) -> Path:
        """Return the path of a worker's iterations, one JSON object a line."""
        return self.path / f"worker-{rank}.jsonl"

    def sums(self, rank: int) -> Path:
        """Return the path of the checksums of a worker's gradients, of its aggregated, pending and discarded values,
        and of its results."""
        return self.path / f"worker-{rank}.npz"

    def log(self, name: str) -> Path:
        """Return the path of the output of one worker."""
        return self.path / "logs" / f"{name}.log"

    def shared_log(self, name: str) -> Path:
        """Return the path of the output of switch or controller."""
        return self.shared / "logs" / f"{name}.log"

    def counts(self, switch: str) -> Path:
        """Return the file in which a switch counts."""
        return self.shared / "logs" / f"{switch}.counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolder:
    """One job's results, with a folder for each trial."""

    id: int
    path: Path
    stem: str
    """The prefix of the names of its configuration's files."""
    trials: tuple[TrialFolder, ...]

    @property
    def alone(self) -> TrialFolder:
        """The folder of the training of one worker alone; missing without run.alone."""
        path = self.path / "alone"
        return TrialFolder(path=path / self.stem, objective="alone", shared=path)

    @property
    def config(self) -> Path:
        """The configuration as given."""
        return self.path / f"{self.stem or 'config'}.toml"

    @property
    def effective(self) -> Path:
        """The configuration with every default and the command line's choices."""
        return self.path / f"{self.stem}{'-' if self.stem else ''}effective.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run's results."""

    path: Path
    jobs: tuple[JobFolder, ...]
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    @classmethod
    def create(cls, path: Path, objectives: Sequence[str], jobs: Sequence[int] = (1,)) -> Self:
        """Make the folder and its trials; ConfigError if it is not empty."""
        folder = cls.at(path, objectives, jobs)
        check_new(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for entry in (entry for job in folder.jobs for entry in job.trials):
                for logs in (entry.path / "logs", entry.shared / "logs"):
                    logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error
        return folder

    @classmethod
    def open(cls, path: Path, *, several_seeds: bool = False) -> Self:
        """Open a begun run by its record; ConfigError without a record, or for a run of several seeds unless
        `several_seeds`.

        A symbolic link, such as runs/latest, is resolved here, because a later run points it elsewhere.
        """
        path = path.parent / path.readlink() if path.is_symlink() else path
        record = read_record(path)
        if record.seeds and not several_seeds:
            raise ConfigError(
                f"{path} must be the folder of one run, got {len(record.seeds)} runs with a seed each: name the folder"
                f" of one of them, {path}/seed-{record.seeds[0]} for example"
            )
        objectives, jobs = [objective for objective, _ in record.trials], [job for job, _ in record.jobs]
        return cls(path=path, jobs=cls.at(path, objectives, jobs).jobs, started=record.started)

    @classmethod
    def at(cls, path: Path, objectives: Sequence[str], jobs: Sequence[int] = (1,)) -> Self:
        """Return the paths of a run's files; nothing is made."""
        return cls(path=path, jobs=tuple(_job_folder(path, job, objectives, alone=len(jobs) == 1) for job in jobs))

    @property
    def trials(self) -> list[tuple[TrialFolder, ...]]:
        """The folders of each job, trial by trial."""
        return list(zip(*(job.trials for job in self.jobs), strict=True))

    @property
    def topology(self) -> Path:
        return self.path / "topology.json"

    @property
    def costs(self) -> Path:
        """The costs of a worker's steps, for a simulation."""
        return self.path / "costs.json"

    @property
    def certificates(self) -> Path:
        """Certificates and tokens of this run's processes, during the run."""
        return self.path / CERTIFICATES

    def write_record(self, configs: Sequence[Config], *, driver: str) -> None:
        """Write the run's record: jobs, trials and driver."""
        record = RunRecord(
            started=self.started,
            target=configs[0].network.target,
            driver=driver,
            jobs=tuple((config.job.id, config.job.workers) for config in configs),
            trials=tuple((entry.objective, entry.shared.name) for entry, *_ in self.trials),
            provenance=Provenance.here(),
        )
        record.write(self.path)

    def update_record(self, **known: object) -> None:
        """Change fields of the record."""
        replace(self.record(), **known).write(self.path)

    def note_switch(self, switch: str) -> None:
        """Note the name and version of the switch that answered."""
        self.update_record(provenance=replace(self.record().provenance, switch=switch))

    def write_effective(self, configs: Sequence[Config]) -> None:
        """Write every job's configuration as its processes read it."""
        for job, config in zip(self.jobs, configs, strict=True):
            write_synced(job.effective, to_toml(config).encode())

    def record(self) -> RunRecord:
        return read_record(self.path)

    def configs(self) -> list[Config]:
        """Read every job's configuration as its processes read it; ConfigError if that fails."""
        return [Config.load(job.effective) for job in self.jobs]


def check_new(path: Path) -> None:
    """Raise ConfigError if results cannot go to a folder: it is not empty, or is no folder."""
    try:
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} is not empty: choose another --out, results are never overwritten")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write results to {path}: {error.strerror}")


def _job_folder(path: Path, job: int, objectives: Sequence[str], *, alone: bool) -> JobFolder:
    """Return the paths of a job's files; nothing is made."""
    stem = "" if alone else f"job-{job}"
    trials = tuple(
        TrialFolder(path=path / name / stem, objective=objective, shared=path / name)
        for name, objective in zip(trial_names(objectives), objectives, strict=True)
    )
    return JobFolder(id=job, path=path, stem=stem, trials=trials)


def trial_names(objectives: Sequence[str]) -> list[str]:
    """Return the folder names: 'fixed:2' -> 'fixed-2'; a repeated objective gets a number."""
    names: list[str] = []
    for objective in objectives:
        stem = folder_stem(objective)
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-again-{number}", number + 1
        names.append(name)
    return names


def folder_stem(objective: str) -> str:
    """Return the prefix of the name of an objective's folder."""
    return objective.replace(":", "-")


def default_path(name: str) -> Path:
    """Return runs/NAME-YYYYmmdd-HHMMSS below the current folder; with a number if two runs start in the same second."""
    path = base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def point_latest(path: Path) -> None:
    """Point the symbolic link `latest` in a folder runs/ to this run, in one step."""
    if path.absolute().parent.name != "runs":
        return  # --out elsewhere: kofn makes no link in other folders
    link = path.parent / "latest"
    if link.exists() and not link.is_symlink():
        return  # a user's own folder
    temporary = path.parent / f".latest-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(path.name)
    temporary.replace(link)
