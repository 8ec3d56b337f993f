"""The findings of a comparison as text: cells for the terminal and for the report alike, and lines of the CSV."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from run.compare.evidence import LINKS, Measured, Row, iteration_s, reduce_s, time_s
from run.compare.points import FLOAT32
from run.spread import Spread

LEGEND = (
    "Medians over the seeds; of each run the first iteration is left out. iteration: from one's end to the next one's; "
    "reduce: an all-reduce, from arrays to arrays; x limit: iteration over the time that the bytes of one gradient, as "
    "its codec sends it and without headers, take at the link's rate; goodput: the inverse, as a share; x ring, x "
    "server: how many times faster than these a seed's run is (the server's with the same codec); link up, down: bytes "
    "of Ethernet frames in an iteration over a worker's link to the switch and from it, server's: over that of the "
    "server, both ways together; to target: time to the target accuracy; off: by how much the parts of the iteration "
    "time miss it, most."
)

ENDING = ("x ring", "x server", "link up, down", "server's", "off")

REPLAY_HEADINGS = ("contender", "iteration", "min .. max", "reduce", "x limit", "goodput", *ENDING)

TRAINED_HEADINGS = ("contender", "to target", "min .. max", "iterations", "iteration", *ENDING, "reached")


def headings(rows: Sequence[Row]) -> Sequence[str]:
    """Of one setting's table."""
    return TRAINED_HEADINGS if rows[0].trained else REPLAY_HEADINGS


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """A row a contender of one setting."""
    by_name = {row.contender.name: row for row in rows}
    return [[row.contender.name, *(_trained if row.trained else _replayed)(row), *_rest(row, by_name)] for row in rows]


def _replayed(row: Row) -> list[str]:
    iteration, over = row.spread(iteration_s), row.spread(lambda run: run.over_limit).median
    reduce = _ms(row.spread(reduce_s).median)
    return [_ms(iteration.median), _range_ms(iteration), reduce, f"{over:.2f}", f"{1 / over:.0%}"]


def _trained(row: Row) -> list[str]:
    time, count = row.spread(time_s), row.spread(lambda run: run.iterations_to_target).median
    span = f"{_s(time.low)} .. {_s(time.high)}"
    iterations = "-" if math.isinf(count) else f"{count:,.0f}"
    return [_s(time.median), span, iterations, _ms(row.spread(iteration_s).median)]


def _rest(row: Row, rows: dict[str, Row]) -> list[str]:
    """What both tables end with."""
    server = server_of(row, rows)
    off = max((run.added_up for run in row.runs), key=abs)
    cells = [_ratio(row, rows.get("ring")), _ratio(row, server), *_bytes(row), f"{off:+.1%}"]
    return (
        [*cells, f"{sum(math.isfinite(run.time_s) for run in row.runs)} of {len(row.runs)}"] if row.trained else cells
    )


def _bytes(row: Row) -> list[str]:
    """Of a worker's link each way, and of the server's, both ways."""
    up, down, server_up, server_down = (row.spread(figure).median for figure in LINKS)
    return [_sizes(up, down), _sizes(server_up + server_down) if server_up else "-"]


def _sizes(*counts: float) -> str:
    """Bytes, for people, in a unit for all of them."""
    unit, scale = ("MB", 1e6) if max(counts) >= 1e5 else ("kB", 1e3)
    return f"{', '.join(f'{count / scale:.2f}' for count in counts)} {unit}"


def server_of(row: Row, rows: Mapping[str, Row]) -> Row | None:
    """The parameter server that a contender is compared with: of the same codec, int32 for float32."""
    return rows.get(f"server-{'int32' if row.contender.codec == FLOAT32 else row.contender.codec}")


def against(row: Row, other: Row | None) -> Spread | None:
    """How many times faster than another: in iterations where gradients are replayed, else to the target accuracy."""
    return None if other is None else row.times_faster(other, time_s if row.trained else iteration_s)


def _ratio(row: Row, other: Row | None) -> str:
    ratio = against(row, other)
    return "-" if ratio is None or not 0 < ratio.median < math.inf else f"{ratio.median:.2f}"


def _range_ms(spread: Spread) -> str:
    return f"{1e3 * spread.low:.1f} .. {1e3 * spread.high:.1f}"


def _ms(time: float) -> str:
    return f"{1e3 * time:.1f} ms"


def _s(time: float) -> str:
    return "never" if math.isinf(time) else f"{time:.1f} s"


def record(run: Measured) -> dict[str, object]:
    """A run as one flat line: compare.csv's, and of compare.json's `runs`; None for what there is not."""
    setting, summary = run.point.setting, run.summary
    return {
        "name": run.point.name,
        "seed": run.seed,
        "model": setting.model.name,
        "elements": setting.model.elements,
        "straggler": setting.straggler,
        "workers": setting.workers,
        "mbps": setting.mbps,
        "collective": run.point.contender.collective,
        "codec": run.point.contender.codec,
        "objective": summary.objective,
        "iterations": summary.iterations,
        "iteration_s": run.iteration_s,
        "reduce_s": run.reduce_s,
        **run.parts_s,
        "mean_iteration_s": run.mean_s,
        "parts_off": run.added_up,
        "gradient_bytes": run.point.gradient_bytes,
        "limit_s": run.point.limit_s,
        "times_limit": run.over_limit,
        "goodput_share": 1 / run.over_limit,
        "worker_up_bytes": run.up_bytes,
        "worker_down_bytes": run.down_bytes,
        "server_up_bytes": run.server_up_bytes,
        "server_down_bytes": run.server_down_bytes,
        "retransmissions": summary.retransmissions,
        "time_to_target_s": summary.time_to_target_s,
        "iterations_to_target": summary.iterations_to_target,
        "best_accuracy": None if setting.model.replay is not None else summary.best_accuracy,
        "command": command(run),
    }


def medians(row: Row, rows: Mapping[str, Row]) -> dict[str, object]:
    """A contender of one setting over its seeds: compare.json's `rows`."""
    figures: dict[str, Callable[[Measured], float]] = {
        "iteration_s": iteration_s,
        "reduce_s": reduce_s,
        "times_limit": lambda run: run.over_limit,
    }
    figures |= {"time_to_target_s": time_s} if row.trained else {}
    return {
        "name": row.point.name,
        "title": row.setting.title,
        "contender": row.contender.name,
        "seeds": [run.seed for run in row.runs],
        **{name: asdict(row.spread(figure)) for name, figure in figures.items()},
        "parts_s": row.parts_s(),
        "times_faster_than_ring": _spread(against(row, rows.get("ring"))),
        "times_faster_than_server": _spread(against(row, server_of(row, rows))),
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def command(run: Measured) -> str:
    """What repeats a run."""
    return f"kofn run {run.source}"
