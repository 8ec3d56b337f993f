"""Export data frames for other programs: as CSV, Parquet, event files for TensorBoard, or a trace."""

import zlib
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, cast

import pandas as pd

from kofn.report.frames import TABLES
from kofn.report.reader import Run
from kofn.report.results import Results
from kofn_common.config.errors import ConfigError
from kofn_common.json_text import json_text

CLOCKS = ("time", "started")
"""Columns of Unix time, which are no curves."""

KEYS = ("trial", "job", "worker")
"""Columns that say which worker a row belongs to. Each worker has a folder for TensorBoard, a process in a trace."""


def export(results: Results, to: str, out: Path | None = None) -> list[Path]:
    """Write the files of format `to` into the folder of that name in the results' folder, or into `out`. Return the
    paths of the files, or for TensorBoard the paths of the workers' folders.

    CSV and Parquet have a table for each data frame. TensorBoard and a trace have files for each run.

    Raise ConfigError if the folder is not empty or cannot be written, and ModuleNotFoundError if an extra is missing.
    """
    write = FORMATS[to]()
    folder = out or results.folder / to
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} must be empty, because export overwrites nothing: choose another --out")
        return write(results, folder)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error


NO_ROWS = TABLES["logged"].frame(())

Write = Callable[[Results, Path], list[Path]]


def _csv() -> Write:
    return lambda results, folder: [_table(results, folder / f"{name}.csv") for name in results.frames]


def _parquet() -> Write:
    import pyarrow  # noqa: F401, PLC0415  # fails with the name of kofn[parquet], which pandas' message lacks

    return lambda results, folder: [_table(results, folder / f"{name}.parquet") for name in results.frames]


def _table(results: Results, path: Path) -> Path:
    """Write the data frame that the file is named after, in the format of the file's suffix."""
    frame: pd.DataFrame = getattr(results, path.stem)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return path


def _tensorboard() -> Write:
    """Return a writer of curves over iterations: a folder for each worker, a tag for each number in `metrics`, and a
    tag "logged/NAME" for each number that the script logged."""
    from tensorboardX import SummaryWriter  # noqa: PLC0415  # needs kofn[tensorboard]

    def add(writer: SummaryWriter, tag: str, rows: pd.DataFrame, values: "pd.Series[Any]") -> None:
        """Write the known values of a curve."""
        known = values.notna()
        for value, step, time in zip(values[known], rows["iteration"][known], rows["time"][known], strict=True):
            writer.add_scalar(tag, float(value), int(step), float(time))

    def write(run: Run, folder: Path) -> list[Path]:
        made = []
        logged = {key: rows for key, rows in run.logged.groupby(list(KEYS), sort=False)}
        for (trial, job, worker), rows in run.metrics.groupby(list(KEYS), sort=False):
            jobs = [f"job-{job}"] if len(run.configs) > 1 else []
            path = folder.joinpath(str(trial), *jobs, f"worker-{worker}")
            with SummaryWriter(str(path)) as writer:
                for tag in _curves(rows):
                    add(writer, tag, rows, rows[tag])
                for name, own in logged.get((trial, job, worker), NO_ROWS).groupby("name", sort=False):
                    add(writer, f"logged/{name}", own, own["value"])
            made.append(path)
        if not made:
            raise ConfigError(f"{run.folder} must have an iteration that a worker has finished, got none")
        return made

    return _each(write)


def _each(write: Callable[[Run, Path], list[Path]]) -> Write:
    """Return a writer that writes the files of each run into a folder with the run's name."""
    return lambda results, folder: [path for name, run in results.runs.items() for path in write(run, folder / name)]


def _trace() -> Write:
    """Return a writer of the timelines as trace events, for ui.perfetto.dev and chrome://tracing."""

    def write(run: Run, folder: Path) -> list[Path]:
        path = folder / "trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        events = [event for key, rows in run.timeline.groupby(list(KEYS), sort=False) for event in _events(key, rows)]
        if not events:
            raise ConfigError(f"{run.folder} has no timelines: only a run with [schedule] has them")
        path.write_text(json_text({"traceEvents": events}))
        return [path]

    return _each(write)


TRACKS = {"computation": ("forward", "error", "weight"), "waiting": ("wait",), "transfers": ("transfer",)}
"""The kinds of intervals (`what`) in each track of a worker."""


def _events(key: Hashable, rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the names and intervals of one worker as trace events, with times in microseconds."""
    trial, job, worker = cast(tuple[str, int, int], key)
    process = f"{trial}, job {job}, worker {worker}"
    number = zlib.crc32(process.encode()) >> 1
    yield {"name": "process_name", "ph": "M", "pid": number, "args": {"name": process}}
    for track, name in enumerate(TRACKS):
        yield {"name": "thread_name", "ph": "M", "pid": number, "tid": track, "args": {"name": name}}
    tracks = {what: track for track, inside in enumerate(TRACKS.values()) for what in inside}
    for row in rows.to_dict("records"):
        yield {
            "name": f"{row['what']} {row['layer']}",
            "ph": "X",
            "ts": round(1e6 * row["begin_s"]),
            "dur": round(1e6 * (row["end_s"] - row["begin_s"])),
            "pid": number,
            "tid": tracks[row["what"]],
            "args": {"iteration": row["iteration"], "schedule": row["schedule"]},
        }


def _curves(rows: pd.DataFrame) -> list[str]:
    """Return the numeric columns that have at least one value."""
    numbers = rows.select_dtypes(["number", "bool", "boolean"]).drop(
        columns=[*KEYS, *CLOCKS, "iteration"], errors="ignore"
    )
    return [str(name) for name in numbers if numbers[name].notna().any()]


FORMATS: dict[str, Callable[[], Write]] = {
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
    "trace": _trace,
}
"""For each format, a function that imports the libraries of the format and returns its writer."""
