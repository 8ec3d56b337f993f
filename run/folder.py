"""The layout of a run's results: which file is where.  Knows no file's content.

runs/NAME-YYYYmmdd-HHMMSS/
  config.toml topology.json     what was run, as it was given
  effective.toml                the same with every default and the command line's choices
  run.json                      the command line's choices, passes and their folders
  boot.log                      the network's own log
  PASS/worker-R.jsonl, .npz     a worker's iterations, and its sums of gradients
  PASS/status.jsonl             the controller's view, about twice a second
  PASS/logs/NAME.log            the output of every process
  metrics.jsonl summary.json report.html
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from run.config import Config
from run.effective import to_toml
from run.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFolder:
    """Results of one objective over the whole training."""

    path: Path
    objective: str

    @property
    def status(self) -> Path:
        """The controller's statuses, one JSON object a line."""
        return self.path / "status.jsonl"

    @property
    def decisions(self) -> Path:
        """The controller's journal, one JSON object a line."""
        return self.path / "decisions.jsonl"

    def metrics(self, rank: int) -> Path:
        """A worker's iterations, one JSON object a line."""
        return self.path / f"worker-{rank}.jsonl"

    def sums(self, rank: int) -> Path:
        """A worker's sums of gradients, counted values, residual and results."""
        return self.path / f"worker-{rank}.npz"

    def log(self, name: str) -> Path:
        """The output of one process."""
        return self.path / "logs" / f"{name}.log"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What run.json holds: enough to read a run folder again."""

    started: str  # local time
    target: str
    driver: str  # the one in use once the network is up
    workers: int
    passes: tuple[tuple[str, str], ...]  # (objective, folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run's results."""

    path: Path
    passes: tuple[PassFolder, ...]
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    @classmethod
    def create(cls, path: Path, objectives: Sequence[str]) -> Self:
        """Make the folder and its passes; ConfigError if it holds something already."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ConfigError(f"{path} is not empty: choose another --out, results are never overwritten")
            passes = tuple(
                PassFolder(path=path / name, objective=objective)
                for name, objective in zip(pass_names(objectives), objectives, strict=True)
            )
            for entry in passes:
                (entry.path / "logs").mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"cannot write results to {path}: {error.strerror}") from error
        return cls(path=path, passes=passes)

    @property
    def config(self) -> Path:
        """The configuration as it was given."""
        return self.path / "config.toml"

    @property
    def topology(self) -> Path:
        """Hosts, switch and links."""
        return self.path / "topology.json"

    @property
    def effective(self) -> Path:
        """The configuration with every default and the command line's choices."""
        return self.path / "effective.toml"

    def write_record(self, config: Config, *, driver: str) -> None:
        """Note what is run; again when more is known."""
        record = Record(
            started=self.started,
            target=config.network.target,
            driver=driver,
            workers=config.job.workers,
            passes=tuple((entry.objective, entry.path.name) for entry in self.passes),
        )
        (self.path / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        self.effective.write_text(to_toml(config))

    def record(self) -> Record:
        """What write_record() wrote."""
        return msgspec.json.decode((self.path / "run.json").read_bytes(), type=Record)


def pass_names(objectives: Sequence[str]) -> list[str]:
    """Folder names: 'fixed:2' -> 'fixed-2'; a repeated objective gets a number."""
    names: list[str] = []
    for objective in objectives:
        stem = objective.replace(":", "-")
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-again-{number}", number + 1
        names.append(name)
    return names


def default_path(name: str) -> Path:
    """runs/NAME-YYYYmmdd-HHMMSS below the current folder; a number more if two start in the same second."""
    path = base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def point_latest(path: Path) -> None:
    """Make the symbolic link `latest` beside a run in a folder runs/ name that run, in one step."""
    if path.absolute().parent.name != "runs":
        return  # --out elsewhere: that folder is none of ours
    link = path.parent / "latest"
    if link.exists() and not link.is_symlink():
        return  # somebody's own folder
    temporary = path.parent / f".latest-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(path.name)
    temporary.replace(link)
