"""The runs in a folder: the command, result and size of each run, and the choice of the runs that may be removed."""

import difflib
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kofn.report.summary import StoredSummary, stored_summary
from kofn_common.config.errors import ConfigError
from kofn_common.results.errors import ResultsError
from kofn_common.results.provenance import Provenance
from kofn_common.results.record import read_record

EXPERIMENT_FILE, CHAOS_FILE = "experiment.json", "chaos.json"
"""Results in a folder that holds many runs: those of kofn experiment, and of kofn chaos."""

LATEST = "latest"


class _Experiment(msgspec.Struct, frozen=True):
    """The fields of an experiment's results that the list shows."""

    failures: tuple[str, ...] = ()
    table: tuple[dict[str, Any], ...] = ()
    provenance: Provenance = Provenance()

    @property
    def contenders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(row["contender"]) for row in self.table if "contender" in row))


class _Outcome(msgspec.Struct, frozen=True):
    """The fields of an outcome of kofn chaos that the list shows."""

    scenario: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run, or an experiment, by its folder."""

    path: Path
    when: str
    """Local time of the run's start, or of the experiment's latest result."""
    command: str
    trials: tuple[str, ...]
    result: str
    size_bytes: int
    latest: bool
    """Whether `latest` points to the run."""
    goes_on: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "when": self.when,
            "command": self.command,
            "trials": list(self.trials),
            "result": self.result,
            "size_bytes": self.size_bytes,
            "latest": self.latest,
            "goes_on": self.goes_on,
        }

    @property
    def cells(self) -> list[str]:
        """Return the cells for HEADINGS."""
        size = f"{self.size_bytes / 1e6:,.1f} MB"
        name = f"{self.path.name} (latest)" if self.latest else self.path.name
        return [name, size, self.result, ", ".join(self.trials), self.command]


HEADINGS = ("run", "size", "result", "trials", "command")
TEXTS = ("command", "trials", "result")


def list_runs(folder: Path, active: Path | None) -> list[ListedRun]:
    """Return the runs in a folder, the oldest first; `active` is the folder of the running run."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: kofn run makes runs/, --folder names another one")
    latest = (folder / LATEST).resolve()
    found = [
        listed
        for path in folder.iterdir()
        if path.is_dir() and not path.is_symlink() and (listed := _listed(path, latest, active))
    ]
    return sorted(found, key=lambda run: (run.when, run.path.name))


def prunable(runs: Sequence[ListedRun], keep: int) -> list[ListedRun]:
    """Return all runs but the newest `keep`, the run that `latest` points to, and a running run."""
    return [run for run in runs[: max(0, len(runs) - keep)] if not (run.latest or run.goes_on)]


def remove(run: ListedRun) -> None:
    """Remove the run's folder; ResultsError if that fails."""
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        raise ResultsError(f"{run.path} cannot be removed: {error.strerror}") from error


def find_run(name: str, folder: Path) -> Path:
    """Find a run by its path, or by its name in `folder`; ConfigError suggests similar names."""
    for path in (Path(name), folder / name):
        if path.is_dir():
            return path
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    alike = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(alike)}?" if alike else "kofn runs lists them"
    raise ConfigError(f"{name} is no run, neither here nor in {folder}: {hint}")


def _listed(path: Path, latest: Path, active: Path | None) -> ListedRun | None:
    resolved = path.resolve()
    goes_on = active is not None and (active == resolved or resolved in active.parents)
    trials: tuple[str, ...] = ()
    command = ""
    try:
        record = read_record(path)
    except ConfigError:
        made = [file for name in (EXPERIMENT_FILE, CHAOS_FILE) if (file := path / name).exists()]
        if not made:
            return None
        when = _clock(made[0].stat().st_mtime)
        command, trials, result = _of_many(made[0])
    except ResultsError as error:
        when, result = _clock(path.stat().st_mtime), str(error)
    else:
        when, command = record.started, _short(record.provenance.command)
        trials = tuple(objective for objective, _ in record.trials)
        result = _result(path, record.early_end)
    return ListedRun(
        path=path,
        when=when,
        command=command,
        trials=trials,
        result="goes on" if goes_on else result,
        size_bytes=sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir()),
        latest=resolved == latest,
        goes_on=goes_on,
    )


def _of_many(made: Path) -> tuple[str, tuple[str, ...], str]:
    """Return command, contenders and result of an experiment or of kofn chaos, by the file with its results."""
    try:
        if made.name == CHAOS_FILE:
            outcomes = msgspec.json.decode(made.read_bytes(), type=dict[str, list[_Outcome]]).values()
            wrong = [outcome.scenario for each in outcomes for outcome in each if not outcome.passed]
            return "kofn chaos", (), failed(wrong) or "ok"
        found = msgspec.json.decode(made.read_bytes(), type=_Experiment)
    except (OSError, ValueError) as error:
        return "", (), f"{made}: {error}"
    return _short(found.provenance.command), found.contenders, failed(found.failures) or "ok"


def _clock(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _short(command: str) -> str:
    """Return the command without --out, because the list has the folder already."""
    words = shlex.split(command)
    if "--out" in words[:-1]:
        at = words.index("--out")
        del words[at : at + 2]
    return shlex.join(words)


def _result(path: Path, early_end: str) -> str:
    """Return the result of a run, in a few words."""
    if early_end:
        return early_end
    try:
        summary = stored_summary(path)
    except (OSError, ValueError):
        return f"no summary; kofn report {path} makes it"
    return outcome(summary)


def outcome(summary: StoredSummary) -> str:
    """Return "ok", or the first fault."""
    return failed(summary.failures) or ("ok" if summary.ok else "changed by hand")


def failed(failures: Sequence[str]) -> str:
    """Return the first fault and the number of the others; empty without a fault."""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"failed: {failures[0]}{more}" if failures else ""
