"""The cells, columns, table and claims of zero-network.toml that the file cannot state."""

import math
from functools import cache
from statistics import fmean, median

import msgspec
import pandas as pd
from zero_training import compared, units_of

import kofn
from kofn.experiments.claims import Verdict
from kofn.experiments.tables import count, seconds, shown
from kofn_common.config.errors import ConfigError
from kofn_common.results.step_cost import STEPS_FILE, StepCost
from kofn_common.wire.sizes import VOTE_WORDS

WARM = 4
"""Steps of a run in the warm-up; the first step of either kind does not count."""

TASK, ELEMENTS = "mlp", sum(map(sum, units_of((1024, 1024))))

RATE = "network.link_mbps"

FASTER, SLOW_MBPS = 5.0, 50.0
"""The least speed-up over a training in float32 over gloo, and the greatest rate of links at which it is claimed."""

LEAST_SHARE = 28
"""The least ratio of the bytes that a worker sends in float32 to the bytes that it sends in one bit."""


def cells(points):
    """Let the script train as the table [own] says."""
    for point in points:
        own, document = point.own, point.document
        words = ["--optimizer", own.get("optimizer", "kofn"), "--stage", str(own["stage"]), "--bits", str(_bits(own))]
        gloo = ["--gloo"] if own.get("gloo") else []
        document["torch"]["arguments"] = [*words, *gloo, *document["torch"]["arguments"]]
        if _bits(own) == 1:
            document["job"]["words"] = VOTE_WORDS
    return points


def _bits(own):
    return own.get("bits", 32)


def columns(trial):
    own, workers = trial.cell.point.own, trial.config.job.workers
    paths = [trial.folder.path / STEPS_FILE.format(rank=rank) for rank in range(workers)]
    costs = [msgspec.json.decode(path.read_bytes(), type=list[StepCost]) for path in paths]
    few = [cost for steps in costs for cost in steps[WARM + 1 :]]
    step_s, warm_s = (_slowest_s(costs, which) for which in (slice(WARM + 1, None), slice(1, WARM)))
    up, down = link_bytes(own, ELEMENTS, workers)
    warms_up, steps = _bits(own) == 1, _steps(trial.cell.out.parent / "zero").get(_learns_as(trial.cell.point))
    return {
        **{name: own.get(name, default) for name, default in (("stage", 1), ("bits", 32), ("gloo", False))},
        "warm_s": warm_s if warms_up else None,
        "step_s": step_s,
        "up_bytes": fmean(cost.up for cost in few),
        "up_formula_bytes": up,
        "down_bytes": fmean(cost.down for cost in few),
        "down_formula_bytes": down,
        "steps": steps,
        "to_loss_s": to_loss_s(steps, own["freeze_step"] if warms_up else 0, warm_s, step_s),
    }


def _slowest_s(costs, which):
    return max(median(cost.time_s for cost in steps[which]) for steps in costs)


def to_loss_s(steps, freeze_step, warm_s, step_s):
    """Return the time of so many steps, of which those up to `freeze_step` are of the warm-up; None if the number is
    unknown."""
    if steps is None:
        return None
    before = min(steps, freeze_step)
    return before * warm_s + (steps - before) * step_s


def _learns_as(point):
    """Return the contender of zero.toml with the same steps."""
    return "32 bits" if _bits(point.own) == 32 else point.contender.removesuffix(", gloo")


@cache
def _steps(folder):
    """Return the median steps to the loss, by contender of zero.toml; infinite if the loss is not reached."""
    try:
        arms = compared(kofn.read(folder))
    except ConfigError:
        return {}
    return {arm.name: median(arm.steps) for arm in arms if arm.task == TASK}


def link_bytes(own, elements, workers, *, warm=False):
    """Return the bytes of a step over a worker's link, to the switch and from the switch, without headers; with `warm`,
    of a step of the warm-up."""
    bits, stage = 32 if warm else _bits(own), own["stage"]
    gathers, whole = 2 if stage == 3 else 1, 4 * elements
    if own.get("gloo"):  # the mean goes twice round a ring, in every stage: gloo's reduce_scatter is an all-reduce
        size = (2 * elements * bits / 8 + gathers * whole) * (workers - 1) / workers
        return size, size
    answer = workers.bit_length() if bits == 1 else bits  # counts of votes are wider than votes
    own_part = workers if stage > 1 else 1  # in stages 2 and 3 a worker gets only the part of its shard
    up = elements * bits / 8 + gathers * whole / workers
    return up, elements * answer / 8 / own_part + gathers * whole


def _by_rate(experiment):
    """Yield each rate with the medians of its contenders' columns."""
    frame = experiment.rows()
    numbers = frame[["stage", "bits", "gloo", "step_s", "up_bytes", "steps", "to_loss_s"]].astype("float64")
    for rate in dict.fromkeys(frame[RATE]):
        here = frame[RATE] == rate
        yield rate, numbers[here].groupby(frame["contender"][here], sort=False).median()


def _gloo(row):
    """Return the contender over gloo with the same stage in float32."""
    return f"stage {row.stage:.0f}, 32 bits, gloo"


def _times_faster(row, here):
    return here["to_loss_s"].get(_gloo(row), math.nan) / row.to_loss_s


def to_the_loss(experiment):
    """Return a row for each rate and contender."""
    return pd.DataFrame(
        {
            "Mbit/s": f"{rate:g}",
            "contender": row.Index,
            "steps": count(row.steps, never="never"),
            "to the loss": seconds(row.to_loss_s),
            "x gloo": shown(_times_faster(row, here)),
        }
        for rate, here in _by_rate(experiment)
        for row in here.itertuples()
    )


def claims(experiment):
    """Compare one bit through the switch with 32 bits, with float32 over gloo, and with the two-sided scheme."""
    for rate, here in _by_rate(experiment):
        voting = [row for row in here.itertuples() if row.bits == 1 and not row.gloo]
        for row in voting:
            whole = here["up_bytes"].get(f"stage {row.stage:.0f}, 32 bits")
            if whole is not None:
                yield Verdict(
                    claim=f"{row.Index}: at {rate:g} Mbit/s at most 1/{LEAST_SHARE} of float32's bytes up",
                    holds=bool(whole >= LEAST_SHARE * row.up_bytes),
                    numbers=f"1/{whole / row.up_bytes:.1f}",
                )
        for row in voting:
            if _gloo(row) in here.index:
                goal, ratio = FASTER if rate <= SLOW_MBPS else 1.0, _times_faster(row, here)
                unknown = math.isnan(row.to_loss_s) or math.isnan(here["to_loss_s"][_gloo(row)])
                yield Verdict(
                    claim=f"{row.Index}: at {rate:g} Mbit/s {goal:g} times faster to the loss than float32",
                    holds=None if unknown else bool(ratio >= goal),
                    numbers=UNKNOWN if unknown else shown(ratio),
                )
        for other in [row for row in here.itertuples() if row.bits == 1 and row.gloo]:
            for row in voting:
                unknown = math.isnan(row.to_loss_s) or math.isnan(other.to_loss_s)
                yield Verdict(
                    claim=f"{row.Index}: at {rate:g} Mbit/s faster to the loss than two-sided over gloo",
                    holds=None if unknown else bool(row.to_loss_s < other.to_loss_s),
                    numbers=UNKNOWN if unknown else f"{seconds(row.to_loss_s)} and {seconds(other.to_loss_s)}",
                )


UNKNOWN = f"needs the steps of zero.toml's task {TASK}, in the folder zero beside this experiment's folder"
