"""The answer of an experiment: its table, and the sentence that says which contender is the best."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from kofn.experiments.experiment_file import HOOKS, FigureSection, TableSection
from kofn.experiments.reader import FAULTS, Experiment
from kofn.experiments.tables import TextTable, column_text, ratio_text
from kofn.report.frames import named
from kofn.report.interval import Interval
from kofn.report.results import Where, groups
from kofn_common.config.errors import ConfigError

MORE_IS_BETTER = ("accuracy", "progress", "share", "reached", "gradients")
"""Words of columns of which more is better."""


def shown_columns(experiment: Experiment) -> list[str]:
    """Return the columns of the table; the first one decides which contender is the best."""
    return list(experiment.file.section.show) or experiment.usual


def answer(experiment: Experiment) -> str:
    """Return which contender has the best first column, and how its column compares with the baseline's."""
    column, frame = shown_columns(experiment)[0], experiment.rows()
    more = _more(column)
    best = [name for _, world in experiment.worlds(frame) if (name := best_of(experiment, world, column))]
    if not best:
        return f"No contender has {named(column)} with every seed."
    first = max(dict.fromkeys(best), key=best.count)
    words = f"{first} has the {'most' if more else 'least'} {named(column)}"
    if len(best) > 1:
        words += f" in {best.count(first)} of {len(best)} combinations"
        close = _close(experiment, column, first)
        words += f"; in {close} of them another contender cannot be told from it with these seeds" if close else ""
    if len(best) == 1:
        found = Interval.of(experiment.values(frame[frame["contender"] == first], column).tolist())
        words += f", {column_text(column, found)}"
        if near := _near(experiment, column, first):
            words += f"; {' and '.join(near)} cannot be told from it with these seeds"
    baseline = experiment.baseline
    if baseline is not None and first != baseline:
        every = experiment.ratio(column)
        ratios = every[every["contender"] == first].dropna(subset=["ratio"])
        if len(ratios) == 1:
            (row,) = ratios.to_dict("records")
            ends = "" if pd.isna(row["ratio_low"]) else f" ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
            words += f". It is {row['ratio']:.2f}{ends} times that of {baseline}"
        elif len(ratios):
            words += f". It is {ratios['ratio'].min():.2f} to {ratios['ratio'].max():.2f} times that of {baseline}"
    return f"{words}."


def _near(experiment: Experiment, column: str, best: str, where: Where | None = None) -> list[str]:
    """Return the contenders whose ratio to the best one has an interval that contains 1."""
    ratios = experiment.ratio(column, best, where)
    near = ratios[(ratios["ratio_low"] <= 1) & (ratios["ratio_high"] >= 1) & (ratios["contender"] != best)]
    return [str(name) for name in near["contender"]]


def _close(experiment: Experiment, column: str, best: str) -> int:
    """Return the number of worlds in which a contender is the best, and another one cannot be told from it."""
    count = 0
    for world, rows in experiment.worlds(experiment.rows()):
        count += best_of(experiment, rows, column) == best and bool(_near(experiment, column, best, world))
    return count


def _more(column: str) -> bool:
    """Return whether more of a column is better."""
    return bool({*column.split("_")} & {*MORE_IS_BETTER})


def best_of(experiment: Experiment, world: pd.DataFrame, column: str) -> str | None:
    """Return the contender with the best mean in rows of one world; None if no contender has the column with every
    seed."""
    means = {}
    for key, group in groups(world, ["contender"]):
        values = experiment.values(group, column)
        if values.notna().all() and not faults_of(group):
            means[str(key["contender"])] = float(values.mean())
    return (max if _more(column) else min)(means, key=lambda name: means[name], default=None)


def faults_of(rows: pd.DataFrame) -> list[str]:
    """Return why trainings are not sound."""
    return [str(fault) for name in FAULTS if name in rows for fault in rows[name].dropna()]


def tables(experiment: Experiment) -> Iterator[TextTable]:
    """Yield the table of the shown columns, and those of the file's tables that have results."""
    yield _table(experiment, "", shown_columns(experiment), compared=True)
    for section in experiment.file.document.table:
        if has_results(experiment, section):
            yield _own(experiment, section)


def has_results(experiment: Experiment, section: TableSection | FigureSection) -> bool:
    """Return whether trials of a table or a figure are finished, and with `relative` a trial of the baseline."""
    return experiment.has(section.where) and not (section.relative and experiment.baseline is None)


def _own(experiment: Experiment, section: TableSection) -> TextTable:
    if section.function is None and len(section.columns) == 1 and experiment.axes:
        return _matrix(experiment, section)
    if section.function is None:
        columns = section.columns or shown_columns(experiment)
        return _table(experiment, section.title, columns, section)
    found = HOOKS.load(section.function)(experiment)
    if isinstance(found, TextTable):
        return found
    if not isinstance(found, pd.DataFrame):
        raise ConfigError(f"{section.function} must return a data frame, got a {type(found).__name__}")
    cells = [list(map(_text, row)) for row in found.itertuples(index=False)]
    return TextTable(headings=list(found.columns), cells=cells, title=section.title or None)


def _text(value: Any) -> str:
    """Return a cell of a data frame."""
    if pd.isna(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _matrix(experiment: Experiment, section: TableSection) -> TextTable:
    """Return a row for each combination of the axes, with a column for each contender."""
    (column,) = section.columns
    frame = experiment.rows(section.where)
    paired = experiment.paired(column, where=section.where) if section.relative else frame
    left_out = experiment.baseline if section.relative else None
    contenders = [name for name in dict.fromkeys(frame["contender"]) if name != left_out]
    rows = []
    for world, group in experiment.worlds(frame):
        cells = {}
        for key, own in groups(group, ["contender"]):
            ratio = section.relative
            found = _ratio(experiment, paired, {**world, **key}) if ratio else _mean(experiment, own, column)
            cells[key["contender"]] = found
        rows.append([*map(str, world.values()), *(cells.get(name, "-") for name in contenders)])
    headings = [*experiment.axes, *contenders]
    return TextTable(headings=headings, cells=rows, title=section.title or None, texts=experiment.axes)


def _table(
    experiment: Experiment,
    title: str,
    columns: Sequence[str],
    section: TableSection | None = None,
    *,
    compared: bool = False,
) -> TextTable:
    """Return a row for each combination of the axes and contender, with a column for each column. With `compared`, the
    first column's ratio to the baseline's follows."""
    where = section.where if section else None
    frame = experiment.rows(where)
    relative = section is not None and section.relative
    axes = [name for name in experiment.axes if frame[name].nunique() > 1]
    rows, paired = [], {}
    if relative or (compared and experiment.baseline):
        paired = {column: experiment.paired(column, where=where) for column in (columns if relative else columns[:1])}
    for key, group in groups(frame, experiment.by):
        cells = [str(key[name]) for name in (*axes, "contender")]
        for column in columns:
            cells.append(_ratio(experiment, paired[column], key) if relative else _mean(experiment, group, column))
        if paired and not relative:
            cells.insert(len(axes) + 2, _ratio(experiment, paired[columns[0]], key))
        rows.append(cells)
    headings = [*axes, "contender", *(named(column).partition(" [")[0] for column in columns)]
    if paired and not relative:
        headings.insert(len(axes) + 2, f"of {experiment.baseline}")
    return TextTable(headings=headings, cells=rows, title=title or None, texts=[*axes, "contender"])


def _mean(experiment: Experiment, group: pd.DataFrame, column: str) -> str:
    """Return a column's mean with its interval; "never in 2 of 5" if seeds lack it."""
    values = experiment.values(group, column)
    missing = int(values.isna().sum())
    if missing == len(values):
        return "never" if "target" in column else "-"
    return f"never in {missing} of {len(values)}" if missing else column_text(column, Interval.of(values.tolist()))


def _ratio(experiment: Experiment, paired: pd.DataFrame, key: dict[str, object]) -> str:
    if key["contender"] == experiment.baseline:
        return "1"
    rows = paired
    for name, value in key.items():
        rows = rows[rows[name] == value]
    known = rows["ratio"].dropna()
    return "-" if len(known) < len(rows) or known.empty else ratio_text(Interval.of(known.tolist()))
