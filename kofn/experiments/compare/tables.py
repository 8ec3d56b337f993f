"""The text and JSON of a comparison."""

import math
from statistics import median

import pandas as pd

from kofn.experiments.compare.arms import ContenderArm, Rivals, server_of, setting_of
from kofn.experiments.compare.columns import LINKS
from kofn.experiments.statistics import Spread
from kofn.experiments.tables import Columns, TextTable, count, milliseconds, seconds, shown, span
from kofn.report.formatting import shares
from kofn_common.results.worker_metrics import TIME_PARTS

LEGEND = (
    "Medians over the seeds, without each run's first iteration. iteration: time from an iteration's end to the next "
    "iteration's end; min .. max: range over the seeds; reduce: time of an all-reduce, from arrays to arrays; x limit: "
    "iteration time / time of an encoded gradient, without headers, at the link's rate; goodput: 1 / (x limit); "
    "x ring, x server: speed-up over the ring, and over the server with the same codec; link up, down: bytes of "
    "Ethernet frames that a worker sends and receives in an iteration; server's: bytes on the server's link, or a "
    "leaf's uplink, both ways together; memory: a worker's arrays between two iterations, mean; to target: time to "
    "the target accuracy; iterations: number of iterations to the target; off: largest relative "
    "error of the sum of an iteration's parts; compute/code/net/wait/step: shares of an iteration of DDP. code: "
    "encode, sum and decode; net: send and receive; after the first bucket the backward pass counts as all-reduce."
)

REPLAYED: Columns[ContenderArm] = {
    "iteration": lambda arm: milliseconds(arm.spread("iteration_s").median),
    "min .. max": lambda arm: span(arm.spread("iteration_s"), lambda time_s: f"{1e3 * time_s:.1f}"),
    "reduce": lambda arm: milliseconds(arm.spread("reduce_s").median),
    "x limit": lambda arm: f"{arm.spread('times_limit').median:.2f}",
    "goodput": lambda arm: f"{1 / arm.spread('times_limit').median:.0%}",
}

TRAINED: Columns[ContenderArm] = {
    "to target": lambda arm: seconds(arm.spread("time_to_target_s").median),
    "min .. max": lambda arm: span(arm.spread("time_to_target_s"), seconds),
    "iterations": lambda arm: count(arm.spread("iterations_to_target").median),
    "iteration": lambda arm: milliseconds(arm.spread("iteration_s").median),
}

SCRIPTED: Columns[ContenderArm] = {
    **REPLAYED,
    "compute/code/net/wait/step": lambda arm: shares(
        {part.removesuffix("_s"): time_s for part, time_s in _parts_s(arm).items()}
    ),
}


def setting_table(rivals: Rivals) -> TextTable:
    trained = setting_of(rivals).trained
    columns: Columns[ContenderArm] = {
        "contender": lambda arm: arm.contender.name,
        **(TRAINED if trained else SCRIPTED if setting_of(rivals).model.scripted else REPLAYED),
        "x ring": lambda arm: _ratio(arm, rivals.get("ring")),
        "x server": lambda arm: _ratio(arm, server_of(arm, rivals)),
        "link up, down": lambda arm: _sizes(*(arm.spread(name).median for name in LINKS[:2])),
        "server's": _server_bytes,
        "memory": lambda arm: shown(arm.mean("memory_bytes") / 1e6, "{:.1f} MB"),
        "off": lambda arm: f"{max(arm.known('parts_off'), key=abs):+.1%}",
        **({"reached": lambda arm: f"{arm.reached} of {len(arm.seeds)}"} if trained else {}),
    }
    return TextTable.of(columns, rivals.values(), setting_of(rivals).title)


def _parts_s(arm: ContenderArm) -> dict[str, float]:
    return {part: median(arm.known(part)) for part in TIME_PARTS}


def _ratio(arm: ContenderArm, other: ContenderArm | None) -> str:
    ratio = arm.times_faster(other, arm.pace)
    return "-" if ratio is None or not 0 < ratio.median < math.inf else f"{ratio.median:.2f}"


def _server_bytes(arm: ContenderArm) -> str:
    up, down = (arm.spread(name).median for name in LINKS[2:])
    return _sizes(up + down) if up else "-"


def _sizes(*counts: float) -> str:
    """Return bytes as text, in one unit for all of them."""
    unit, scale = ("MB", 1e6) if max(counts) >= 1e5 else ("kB", 1e3)
    return f"{', '.join(f'{count / scale:.2f}' for count in counts)} {unit}"


RUN = (
    *("name", "seed", "model", "elements", "straggler", "workers", "mbps", "collective", "codec", "objective"),
    *("iterations", "iteration_s", "reduce_s", *TIME_PARTS, "mean_iteration_s", "parts_off"),
    *("gradient_bytes", "limit_s"),
    *(
        "times_limit",
        "goodput_share",
        *LINKS,
        "retransmissions",
        "memory_bytes",
        "time_to_target_s",
        "iterations_to_target",
    ),
    *("best_accuracy", "command"),
)
"""Keys of a run in compare.json: columns of the table of trials, two of which COLUMN renames."""

COLUMN = {"name": "scenario", "mean_iteration_s": "worker_iteration_s"}


def run_documents(trials: pd.DataFrame) -> list[dict[str, object]]:
    return [{key: run[COLUMN.get(key, key)] for key in RUN} for run in trials.to_dict("records")]


def arm_document(arm: ContenderArm, rivals: Rivals) -> dict[str, object]:
    """Return one contender's medians and spreads over its seeds, for JSON."""
    spreads: dict[str, Spread | None] = {
        name: arm.spread(name)
        for name in ("iteration_s", "reduce_s", "times_limit", *(["time_to_target_s"] if arm.setting.trained else []))
    }
    return {
        "name": arm.point.name,
        "title": arm.setting.title,
        "contender": arm.contender.name,
        "seeds": arm.seeds,
        **spreads,
        "parts_s": _parts_s(arm),
        "times_faster_than_ring": arm.times_faster(rivals.get("ring"), arm.pace),
        "times_faster_than_server": arm.times_faster(server_of(arm, rivals), arm.pace),
    }
