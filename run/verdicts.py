"""The claims about the choice of k, each said yes or no with its numbers."""

import math
from collections.abc import Iterator, Sequence

from run.claims import Verdict
from run.evidence import Findings, Row

NEAR = 0.10
"""How far from the best fixed k an objective may be, and a prediction from what is measured."""

FASTER = 3.0
"""How many times faster than with k = n, with one slow worker."""

ONE_SLOW = "one-slow"
"""The scenario of that claim."""


def verdicts(found: Sequence[Findings]) -> list[Verdict]:
    """On everything that these scenarios can tell; a claim that they cannot is left out."""
    return [verdict for one in found for verdict in _of_scenario(one)] + list(_stash(found))


def _of_scenario(found: Findings) -> Iterator[Verdict]:
    best = found.fixed[0] if found.fixed else None
    for row in found.adaptive:
        if best is not None and found.stationary:
            yield _near(found, row, best)
        if best is not None and found.shifting:
            yield _better(found, row, best)
        if found.scenario == ONE_SLOW and found.everyone is not None:
            yield _faster(found, row, found.everyone)
    rows = [row for row in found.rows if row.k is not None]
    if found.stationary and rows:
        yield _predicted(found, rows)


def _stash(found: Sequence[Findings]) -> Iterator[Verdict]:
    """Stash against drop: scenarios NAME-stash and NAME-drop, k by k."""
    by_name = {one.scenario: one for one in found}
    for one in found:
        stem, _, late = one.scenario.rpartition("-")
        dropping = by_name.get(f"{stem}-drop")
        if late == one.late == "stash" and dropping is not None:
            others = {row.objective: row for row in dropping.rows}
            yield from (_kept(stem, row, others[row.objective]) for row in one.rows if row.objective in others)


def _kept(stem: str, stashed: Row, dropped: Row) -> Verdict:
    """By the time to the target; by the best accuracy, where neither comes to it."""
    if math.isfinite(stashed.time_s.median) or math.isfinite(dropped.time_s.median):
        holds = stashed.time_s.median <= dropped.time_s.median
    else:
        holds = stashed.best_accuracy.median >= dropped.best_accuracy.median
    return Verdict(
        claim=f"{stem}, {stashed.objective}: at the target no later, or nearer to it, with the stash than without",
        holds=holds,
        numbers=f"{_reached(stashed)} against {_reached(dropped)}",
    )


def _reached(row: Row) -> str:
    owned = "" if row.owned_accuracy is None else f", of one worker's classes {row.owned_accuracy.median:.1%}"
    return f"{_times(row)} (best accuracy {row.best_accuracy.median:.1%}{owned})"


def _near(found: Findings, row: Row, best: Row) -> Verdict:
    ratio = row.against(best)
    return Verdict(
        claim=f"{found.scenario}: {row.objective} within {NEAR:.0%} of the best fixed k{_of_how_many(found)}",
        holds=ratio <= 1 + NEAR,
        numbers=f"{_times(row)} against {_times(best)} with {best.objective}: x {ratio:.2f}",
    )


def _better(found: Findings, row: Row, best: Row) -> Verdict:
    ratio = row.against(best)
    return Verdict(
        claim=f"{found.scenario}: {row.objective} better than every fixed k{_of_how_many(found)}",
        holds=ratio < 1,
        numbers=f"{_times(row)} against {_times(best)} with {best.objective}: x {ratio:.2f}",
    )


def _of_how_many(found: Findings) -> str:
    """Where not every k was run."""
    ks = sorted({row.k for row in found.rows if row.k is not None})
    return "" if len(ks) == found.workers else f" (of {', '.join(map(str, ks))})"


def _faster(found: Findings, row: Row, everyone: Row) -> Verdict:
    numbers = f"{_times(row)} against {_times(everyone)}"
    if math.isinf(row.time_s.median):
        return Verdict(claim=_faster_claim(found, row), holds=False, numbers=numbers)
    ratio = 1 / row.against(everyone)
    return Verdict(claim=_faster_claim(found, row), holds=ratio >= FASTER, numbers=f"{numbers}: {ratio:.2f} times")


def _faster_claim(found: Findings, row: Row) -> str:
    return f"{found.scenario}: {row.objective} at least {FASTER:g} times faster than k = n"


def _predicted(found: Findings, rows: Sequence[Row]) -> Verdict:
    errors = [None if row.error is None else row.error.median for row in rows]
    words = ["unknown" if error is None else f"{error:+.1%}" for error in errors]
    return Verdict(
        claim=f"{found.scenario}: predicted iteration time within {NEAR:.0%} of the measured one for every k",
        holds=all(error is not None and abs(error) <= NEAR for error in errors),
        numbers=", ".join(f"{row.objective} {word}" for row, word in zip(rows, words, strict=True)),
    )


def _times(row: Row) -> str:
    return "never" if math.isinf(row.time_s.median) else f"{row.time_s.median:.1f} s"
