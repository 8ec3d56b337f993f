"""The claims of a comparison, each said yes or no with its numbers; what the runs cannot tell is left out."""

import math
from collections.abc import Iterator, Mapping, Sequence

from run.claims import Verdict
from run.compare.evidence import Measured, Row, by_setting, iteration_s, time_s
from run.compare.points import BLOCKED, NONE, TCP

LIMIT = 1.15
"""Times the link's limit that an iteration in the network may take."""

RING = 1.5
"""Times faster than a ring it is at least."""

SERVER = 0.8
"""Times faster than a parameter server it is at least, for each worker."""

OFF = 0.05
"""Share by which the parts of an iteration's time may miss the time."""


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """On everything that these rows can tell."""
    said: list[Verdict] = []
    for several in by_setting(rows).values():
        setting = several[0].setting
        by_name = {row.contender.name: row for row in several}
        if not several[0].trained and setting.straggler == NONE:
            said += _replayed(by_name)
        if several[0].trained and setting.straggler == BLOCKED:
            said += _blocked(several)
    return said + ([_added_up(rows)] if rows else [])


def _replayed(rows: Mapping[str, Row]) -> Iterator[Verdict]:
    """Time of an iteration with all workers in the network, against the link and the others."""
    for row in rows.values():
        if row.contender.collective != "full":
            continue
        yield _near_limit(row)
        for name in TCP:
            if name in rows:
                yield _faster(row, rows[name], RING, f"{RING:g}")
        workers = row.setting.workers
        if (server := rows.get(f"server-{row.contender.codec}")) is not None:
            yield _faster(row, server, SERVER * workers, f"{SERVER:g} n = {SERVER * workers:g}")


def _near_limit(row: Row) -> Verdict:
    ratio = row.spread(lambda run: run.over_limit)
    reduce = row.spread(lambda run: run.reduce_s / run.point.limit_s).median
    return Verdict(
        claim=f"{row.setting.title}: {row.contender.name} within {LIMIT:g} times the link's limit",
        holds=ratio.median <= LIMIT,
        numbers=f"{_ms(row)} against {1e3 * row.point.limit_s:.1f} ms for {row.point.gradient_bytes / 1e6:.2f} MB: "
        f"x {ratio.median:.2f} ({ratio.low:.2f} .. {ratio.high:.2f}); the all-reduce alone x {reduce:.2f}",
    )


def _faster(row: Row, other: Row, bound: float, words: str) -> Verdict:
    ratio = row.times_faster(other, iteration_s)
    allowed = other.point.busiest_bytes / row.point.busiest_bytes
    numbers = (
        "no seed in common" if ratio is None else f"{ratio.median:.2f} times ({ratio.low:.2f} .. {ratio.high:.2f})"
    )
    return Verdict(
        claim=f"{row.setting.title}: {row.contender.name} at least {words} times faster than {other.contender.name}",
        holds=ratio is not None and ratio.median >= bound,
        numbers=f"{_ms(row)} against {_ms(other)}: {numbers}; by the bytes of the busiest links {allowed:.2f}",
    )


def _blocked(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Time to the target of the k that is chosen, against all others that send gradients in the same codec."""
    for row in rows:
        codec = row.contender.codec
        others = [
            other
            for other in rows
            if other.contender.collective != "adaptive"
            and (other.contender.codec == codec or other.contender.collective in TCP)
        ]
        if row.contender.collective == "adaptive" and others:
            yield _before_all(row, others)


def _before_all(row: Row, others: Sequence[Row]) -> Verdict:
    ratios = {other.contender.name: row.times_faster(other, time_s) for other in others}
    words = [
        f"{name} {'?' if one is None else 'never' if math.isinf(one.median) else f'x {one.median:.2f}'}"
        for name, one in ratios.items()
    ]
    time = row.spread(time_s)
    return Verdict(
        claim=f"{row.setting.title}: {row.contender.name} at the target before all others",
        holds=all(one is not None and one.median > 1 for one in ratios.values()),
        numbers=f"{'never' if math.isinf(time.median) else f'{time.median:.1f} s'}; the others take {', '.join(words)}",
    )


def _added_up(rows: Sequence[Row]) -> Verdict:
    """Of the run that is furthest off."""

    def off(run: Measured) -> float:
        return abs(run.added_up)

    runs = [run for row in rows for run in row.runs]
    worst = max(runs, key=off)
    return Verdict(
        claim=f"where the time goes adds up to the iteration time within {OFF:.0%} in every run",
        holds=off(worst) <= OFF,
        numbers=f"{sum(off(run) <= OFF for run in runs)} of {len(runs)} runs; furthest off is {worst.point.name}, "
        f"seed {worst.seed}, by {worst.added_up:+.1%}",
    )


def _ms(row: Row) -> str:
    return f"{1e3 * row.spread(iteration_s).median:.1f} ms"
