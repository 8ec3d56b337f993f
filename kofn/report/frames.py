"""The data frames of a run. A frame's rows have a type, whose fields are the frame's columns.

A field that is itself a record becomes a column for each of the record's fields. A field that is a list becomes no
column.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import msgspec.inspect as types
import pandas as pd

from kofn.report.in_force import InForce
from kofn.report.summary import TrialSummary
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.worker_metrics import Iteration
from kofn_host.workload import metric_of


class TrialKey(msgspec.Struct, frozen=True, kw_only=True):
    """The trial and the job of a row."""

    trial: str  # the objective, with a number where it is repeated: "progress", "fixed:2", "fixed:2-again-2"
    job: int  # job.id


class WorkerKey(TrialKey, frozen=True, kw_only=True):
    """The worker of a row, with trial and job."""

    worker: int  # the worker's rank


class GradientArrival(msgspec.Struct, frozen=True, kw_only=True):
    """A gradient that a worker began, and what became of it in that iteration."""

    iteration: int  # the iteration in which the worker began the gradient
    started: float  # when the worker had that iteration's parameters
    first_block_s: float  # from `started` until the gradient's first block left, or until the gradient was given up
    blocking_s: float  # injected delay in that time
    injected_mean_s: float  # mean of the distribution that the delay was drawn from
    place: int  # 1: this gradient's first block left before the first blocks of all others in this iteration
    in_sum: bool  # whether the worker has a part in this iteration's sum
    late: bool  # whether the gradient came when the sum was already complete
    age: int  # age of the gradient in iterations when it was contributed


class TimelineInterval(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one layer's pass, wait or transfer in an iteration of a worker with a schedule."""

    iteration: int  # counted from 1
    schedule: str  # the schedule in force: family:threshold in elements:front layers
    what: str  # forward, error, weight, wait (of a forward pass for its mean) or transfer
    layer: str  # the layer's name
    begin_s: float  # since the start of the first iteration
    end_s: float  # since the start of the first iteration


class LoggedNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A number that a script logged."""

    iteration: int  # the newest iteration whose mean was in the parameters; 0: none
    time: float  # when the script logged it
    name: str  # the name that the script gave
    value: float | None  # none if the number is not finite


class HostLink(msgspec.Struct, frozen=True, kw_only=True):
    """The Ethernet frames of a host's link in a whole trial, counted by the kernel."""

    host: str  # "h1" is the host of worker 0
    to_switch_bytes: int  # sent by the host
    from_switch_bytes: int  # sent to the host


class TrialSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the configuration."""

    seed: int  # run.seed
    workers: int  # job.workers
    target: float | None  # target of the workload's metric; none without a metric

    @classmethod
    def of(cls, config: Config) -> Self:
        metric = metric_of(config)
        target = None if metric is None else metric.target
        return cls(seed=config.run.seed, workers=config.job.workers, target=target)


class DerivedValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values from the lists and records of a summary."""

    wire_ratio: float | None = None  # bytes of the values sent, over the gradients' bytes in float32
    encoding_error: float | None = None  # the L2 norm of the encoding error over the gradient's
    residual: float | None = None  # the L2 norm of the pending part over the gradient's
    objective_fault: str | None = None  # the first fault of the trial's objective, which gave no costs

    @classmethod
    def of(cls, summary: TrialSummary) -> Self:
        """Return the values; the first three are None if the workers do not report the bytes that they sent."""
        sent, fault = summary.compressed, next(iter(summary.objective_faults), None)
        if sent is None:
            return cls(objective_fault=fault)
        return cls(wire_ratio=sent.wire_ratio, encoding_error=sent.error, residual=sent.residual, objective_fault=fault)


@dataclass(frozen=True, slots=True)
class FrameSchema:
    """The columns of a data frame: the fields of these types, one after another."""

    rows: str
    """The meaning of a row."""
    kinds: tuple[type, ...]
    without: tuple[str, ...] = ()
    """Fields without a column."""

    def columns(self) -> Iterator["Column"]:
        for number, kind in enumerate(self.kinds):
            for field in _fields(kind):
                if field.name not in self.without:
                    yield from _columns(field, number, (field.name,), kind)

    @property
    def numbers(self) -> list[str]:
        """The names of the columns that have numbers."""
        return [column.name for column in self.columns() if column.dtype != "str"]

    def row(self, *values: object) -> dict[str, Any]:
        """Return a row by column; `values` has a value of each kind, in the order of `kinds`."""
        return {column.name: column.value(values) for column in self.columns()}

    def frame(self, rows: Iterable[Sequence[object]]) -> pd.DataFrame:
        """Return the frame; each of `rows` has a value of each kind, in the order of `kinds`."""
        several = list(rows)
        return pd.DataFrame(
            {
                column.name: pd.Series([column.value(row) for row in several], dtype=column.dtype)
                for column in self.columns()
            }
        )


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a row, or of a record in the row."""

    name: str
    dtype: str
    kind: type
    """The type that defines the field."""
    field: str
    number: int
    path: tuple[str, ...]

    def value(self, row: Sequence[object]) -> Any:
        """Return the cell; None if the field, or the record with the field, has no value."""
        value: Any = row[self.number]
        for name in self.path:
            value = None if value is None else getattr(value, name)
        return value

    @property
    def unit(self) -> str:
        """Return the unit, from the name; empty: a count, a share, or a text."""
        if self.name in ("time", "started"):
            return "s, Unix time"
        words = self.name.split("_")
        return "bytes" if "bytes" in words else UNITS.get(words[-1], "")


UNITS = {"s": "s", "norm2": "L2 norm, squared", "norm": "L2 norm", "width": "bits", "age": "iterations"}
"""The unit of a column, by the last word of the column's name."""

DTYPES: dict[type[types.Type], str] = {
    types.IntType: "int64",
    types.FloatType: "float64",
    types.BoolType: "bool",
    types.StrType: "str",
}
NULLABLE = {"int64": "Int64", "bool": "boolean"}

SUMMARY = (TrialSummary, DerivedValues)

TABLES = {
    "metrics": FrameSchema("an iteration of a worker", (WorkerKey, Iteration)),
    "logged": FrameSchema("a number that a script logged", (WorkerKey, LoggedNumber)),
    "k": FrameSchema(
        "a rule for late gradients and a k, from the iteration on in which they came into force", (TrialKey, InForce)
    ),
    "arrivals": FrameSchema("a gradient that a worker began", (WorkerKey, GradientArrival)),
    "timeline": FrameSchema("a layer's pass, wait or transfer, with [schedule]", (WorkerKey, TimelineInterval)),
    "links": FrameSchema("the link between a host and the switch", (TrialKey, HostLink)),
    "events": FrameSchema("something that was done to a process, a link or an objective", (TrialKey, LoggedEvent)),
    "summary": FrameSchema("a trial that has begun", (TrialKey, TrialSetting, *SUMMARY), without=("compressed",)),
}
"""The columns of a data frame, by its name."""


def summary_columns(summary: TrialSummary) -> dict[str, Any]:
    """Return a trial's numbers and texts by column of the data frame `summary`."""
    return FrameSchema("a trial", SUMMARY, without=("compressed",)).row(summary, DerivedValues.of(summary))


def named(column: str) -> str:
    """Return a column's name in words, with its unit: "time_to_target_s" becomes "time to target [s]". The key of a
    configuration stays as it is.

    >>> named("progress_per_s"), named("bytes_sent"), named("job.workers"), named("duration_s, over all")
    ('progress [1/s]', 'bytes sent', 'job.workers', 'duration, over all')
    """
    name, comma, rest = column.partition(", ")
    if "." in name:
        return column
    stem, per, unit = name.rpartition("_per_")
    *words, last = (stem if per else name).split("_")
    if not per and last in UNITS and words:
        unit, last = UNITS[last], ""
    found = " ".join(filter(None, [*words, last]))
    if comma:
        return f"{found}, {rest}"
    return f"{found} [1/{unit}]" if per else f"{found} [{unit}]" if unit and not last else found


def _fields(kind: type) -> Sequence[Any]:
    fields: Sequence[Any] = types.type_info(kind).fields  # type: ignore[attr-defined]
    return fields


def _columns(field: Any, number: int, path: tuple[str, ...], kind: type, *, optional: bool = False) -> Iterator[Column]:
    """Yield the columns of a field: no column for a list, a column for each field of a record, else one column."""
    found = field.type
    if isinstance(found, types.UnionType):
        optional = True
        found = next(member for member in found.types if not isinstance(member, types.NoneType))
    if isinstance(found, types.StructType | types.DataclassType):
        for inner in found.fields:
            yield from _columns(inner, number, (*path, inner.name), found.cls, optional=optional)
    elif type(found) in DTYPES:
        dtype = DTYPES[type(found)]
        name = "_".join(path)
        yield Column(name, NULLABLE.get(dtype, dtype) if optional else dtype, kind, field.name, number, path)
