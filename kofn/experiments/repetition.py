"""A repeated experiment beside the original: number by number, whether the two agree."""

from dataclasses import dataclass

import pandas as pd

from kofn.experiments.answer import shown_columns
from kofn.experiments.reader import Experiment
from kofn.experiments.tables import TextTable, column_text, ratio_text
from kofn.report.frames import named
from kofn.report.interval import Interval
from kofn.report.results import SEED, groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The agreement of two experiments' numbers."""

    table: TextTable
    agree: int
    of: int

    @property
    def words(self) -> str:
        return (
            f"{self.agree} of {self.of} numbers agree with the original: they are equal, or the interval of their ratio"
            " contains 1"
        )


def compared(first: Experiment, again: Experiment) -> Repetition:
    """Compare the shown columns of both experiments, seed by seed, in the cells that were asked for again."""
    columns = [name for name in shown_columns(first) if name in again.columns]
    keys = [*first.by, SEED]
    asked = pd.DataFrame([cell.labels for cell in again.cells])
    rows: list[list[str]] = []
    failed = []
    for column in columns:
        old, new = (each.rows()[keys].assign(value=each.values(each.rows(), column)) for each in (first, again))
        both = old.merge(asked, on=keys).merge(new, on=keys, how="outer", suffixes=("_old", "_new"))
        for key, group in groups(both, first.by):
            words, agrees = _compared(group)
            if not agrees:
                failed.append(len(rows))
            sides = (group[side].dropna().tolist() for side in ("value_old", "value_new"))
            means = [column_text(column, Interval.of(values)) for values in sides]
            cell = ", ".join(map(str, key.values()))
            rows.append([cell, named(column).partition(" [")[0], *means, words, "yes" if agrees else "NO"])
    headings = ["cell", "column", "original", "again", "ratio", "agrees"]
    table = TextTable(headings=headings, cells=rows, failed=frozenset(failed), texts=("column", "agrees"))
    return Repetition(table=table, agree=len(rows) - len(failed), of=len(rows))


def _compared(group: pd.DataFrame) -> tuple[str, bool]:
    """Return the ratio of the new to the old numbers as text, and whether they agree."""
    old, new = group["value_old"], group["value_new"]
    if ((old == new) | (old.isna() & new.isna())).all():
        return "equal", True
    if old.isna().any() or new.isna().any():
        return "missing with some seeds", False
    if (old <= 0).any():
        return f"{new.mean() - old.mean():+.3g}", False
    found = Interval.of((new / old).tolist())
    assert found is not None
    if found.low is None or found.high is None:
        return f"{ratio_text(found)}, one seed", False
    return ratio_text(found), found.low <= 1 <= found.high
