"""The worlds of k.toml, and hindsight on the choice of rule and k.

A gradient takes 12 ms, blocking comes in events of 4 ms, and the last ranks are slow.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kofn.experiments.claims import Verdict
from kofn.experiments.experiment_file import Point
from kofn.experiments.reader import Experiment, FinishedTrial
from kofn.report.in_force import InForce
from kofn.report.plots import draw
from kofn.report.summary import TrialSummary
from kofn_common.config.objectives import DEFAULT

Kind = Literal["stationary", "changing", "skewed"]
"""Whether blocking is constant, and whether the workers' data is alike."""

Document = dict[str, Any]
"""Tables of a configuration, as in TOML."""


class World(NamedTuple):
    """A world; `tables` returns the configuration's tables for a number of workers."""

    kind: Kind
    story: str
    tables: Callable[[int], Document]


LONG, SHORT = 20.0, 400
"""The limit of a training's iterations: LONG over the learning rate, but at least SHORT."""

PERIOD = 50
"""Iterations after which a world changes."""

EVENT_MS = 4.0
"""The duration of a blocking event."""

SOON = 80
"""A change that is undone within this number of iterations was a mistake."""

NEVER = 3.0
"""The longest time that counts, divided by the seed's fastest time. A training that misses the target counts with the
longest time."""

MEDIAN, MEAN = 1.05, 1.15
"""The permitted median and geometric mean, over the seeds, of an objective's time divided by the time of the best fixed
rule and k in hindsight."""

NEAR, UNDONE, STARVED = 0.10, 0.1, 0.01
"""The permitted error of a predicted iteration time, the permitted mean number of undone changes in a stationary
training, and the least ratio of a worker's share of the sums to an equal share."""

SCENARIO = ["world", "job.workers", "model.learning_rate"]


def worlds(points: Sequence[Point]) -> list[Point]:
    """Return the points with their worlds' tables, and each rule and k once: with four workers 3n/4 is n-1."""
    found = {}
    for point in points:
        document = copy.deepcopy(point.document)
        workers, rate = document["job"]["workers"], document["model"]["learning_rate"]
        for table, entries in WORLDS[str(point.axes["world"])].tables(workers).items():
            document[table] = document.get(table, {}) | entries if isinstance(entries, dict) else entries
        document["straggler"] = [{"event_ms": EVENT_MS} | entry for entry in document.get("straggler", ())]
        document["run"]["max_iterations"] = max(SHORT, round(LONG / rate))
        found.setdefault((*point.axes.values(), *document["run"]["trials"]), replace(point, document=document))
    return list(found.values())


def _blocked(*means_ms: float, **more: Any) -> Document:
    """Return workers with these mean blocking times, by rank; `more` are further keys of every worker."""
    return {"straggler": [{"workers": [rank], "mean_ms": mean, **more} for rank, mean in enumerate(means_ms)]}


def _last(workers: int, *slow_ms: float, others_ms: float = 4.0) -> Document:
    """Return workers of which the last ones are slow."""
    return _blocked(*[others_ms] * (workers - len(slow_ms)), *slow_ms)


def _graded(workers: int) -> Document:
    """Return workers whose mean blocking grows geometrically from 2 to 60 ms."""
    return _blocked(*(round(2 * 30 ** (rank / (workers - 1)), 1) for rank in range(workers)))


def _hardware(workers: int, times: float) -> Document:
    """Return workers of which half compute more slowly."""
    half, compute_ms = workers // 2, 12 * times
    slow = {"workers": list(range(half, workers)), "mean_ms": 2.0, "compute_ms": compute_ms}
    return {"straggler": [{"workers": list(range(half)), "mean_ms": 2.0}, slow]}


def _shocked(workers: int, base_ms: float, groups: Sequence[Sequence[int]], **more: Any) -> Document:
    """Return workers that are all blocked a little; each group of them also has separate shocks."""
    return _blocked(*[base_ms] * workers) | {"shock": [{"workers": list(group), **more} for group in groups]}


def _racks(workers: int) -> Document:
    """Return workers whose racks have separate shocks: racks of four, or of two if there are four workers."""
    size = 2 if workers == 4 else 4
    racks = [range(first, first + size) for first in range(0, workers, size)]
    return _shocked(workers, 4.0, racks, blocking_ms=50.0, for_ms=300.0, share=0.3)


def _alternating(workers: int) -> Document:
    """Return workers of which the last one is always slow; the others in its half are slow by turns."""
    half = list(range(workers // 2, workers - 1))
    turns = [
        {"workers": half, "mean_ms": mean_ms, "from_iteration": first}
        for first, mean_ms in zip(range(1 + PERIOD, 20 * PERIOD, PERIOD), [60.0, 2.0] * 10, strict=False)
    ]
    return {"straggler": [*_last(workers, 60.0, others_ms=2.0)["straggler"], *turns]}


def _returning(workers: int) -> Document:
    """Return two absences: a gradient of worker 0 takes 1.5 s, later a gradient of worker 1 takes 2.5 s."""
    entries: list[Document] = _last(workers)["straggler"]
    for rank, first, away_ms in ((0, 20, 1500.0), (1, 60, 2500.0)):
        entries.append({"workers": [rank], "mean_ms": 4.0, "compute_ms": away_ms, "from_iteration": first})
        entries.append({"workers": [rank], "mean_ms": 4.0, "from_iteration": first + 5})
    return {"straggler": entries}


def _owned(workers: int) -> Document:
    """Return workers of which the last two are slow, and each of these two alone has a class. Of four workers only the
    last one is slow, and it alone has both classes."""
    if workers == 4:
        return _last(workers, 60.0) | {"shard": [{"worker": 3, "classes": [8, 9]}]}
    shards = [{"worker": workers - 1, "classes": [8]}, {"worker": workers - 2, "classes": [9]}]
    return _last(workers, 60.0, 60.0) | {"shard": shards}


WORLDS = {
    "equal": World("stationary", "all 8 ms", lambda n: _blocked(*[8.0] * n)),
    "one-slow": World("stationary", "one 80 ms, others 2 ms", lambda n: _last(n, 80.0, others_ms=2.0)),
    "two-slow": World("stationary", "40 and 60 ms, others 4 ms", lambda n: _last(n, 40.0, 60.0)),
    "graded": World("stationary", "2 to 60 ms, each by the same factor more", _graded),
    "hardware-1.5": World("stationary", "half of the workers compute 1.5 times longer", lambda n: _hardware(n, 1.5)),
    "hardware-2": World("stationary", "half of the workers compute 2 times longer", lambda n: _hardware(n, 2.0)),
    "exponential": World("stationary", "all 20 ms, exponential", lambda n: _blocked(*[20.0] * n, law="exponential")),
    "pareto": World("stationary", "all 15 ms, Pareto with shape 2", lambda n: _blocked(*[15.0] * n, law="pareto")),
    "bursts": World(
        "stationary",
        "each 60 ms for half a second, a quarter of the time",
        lambda n: _shocked(n, 2.0, [[rank] for rank in range(n)], blocking_ms=60.0, for_ms=500.0, share=0.25),
    ),
    "shocks": World(
        "stationary",
        "all at once 60 ms for 100 ms, a quarter of the time",
        lambda n: _shocked(n, 4.0, [range(n)], blocking_ms=60.0, for_ms=100.0, share=0.25),
    ),
    "racks": World("stationary", "rack by rack 50 ms for 300 ms, 30 % of the time", _racks),
    "shifting": World(
        "changing",
        f"one 70 ms, another one every {PERIOD} iterations",
        lambda n: _last(n, 70.0, others_ms=2.0) | {"run": {"shift_every": PERIOD}},
    ),
    "alternating": World("changing", f"one and half of them 60 ms, by turns of {PERIOD} iterations", _alternating),
    "returning": World("changing", "two are away for 1.5 s and 2.5 s", _returning),
    "owned": World("skewed", "two 60 ms, which alone hold two classes", _owned),
    "dirichlet": World(
        "skewed",
        "two 40 ms; classes divided by Dirichlet(0.3)",
        lambda n: _last(n, 40.0, 40.0) | {"model": {"dirichlet": 0.3}},
    ),
}
"""All worlds, by name."""


def columns(trial: FinishedTrial) -> dict[str, object]:
    """Return the columns about the choice of rule and k (choice_columns), and the world's kind."""
    return {"kind": WORLDS[str(trial.cell.point.axes["world"])].kind} | choice_columns(trial.summary)


def choice_columns(summary: TrialSummary) -> dict[str, object]:
    """Return the columns about the choice of rule and k.

    `prediction_error` is (predicted - measured) / measured. `least_share` is the least of the workers' shares of the
    sums, divided by an equal share. `changes` counts the changes of rule or k, and `undone` counts the changes that
    were undone within SOON iterations. `ends_with` is the last rule and k.
    """
    predicted_s, shares, in_force = summary.predicted_iteration_s, summary.share_by_worker, summary.in_force
    return {
        "prediction_error": predicted_s / summary.mean_iteration_s - 1 if predicted_s else None,
        "least_share": min(shares) * len(shares) if shares else None,
        "changes": max(len(in_force) - 1, 0),
        "undone": _undone(in_force),
        "ends_with": f"{in_force[-1]}" if in_force else None,
    }


def _undone(in_force: Sequence[InForce]) -> int:
    """Return how often a rule and k returned soon after they had been left."""
    count = 0
    for at, now in enumerate(in_force):
        earlier = pairwise(in_force[: at + 1])
        count += any(left.what == now.what and now.iteration - after.iteration <= SOON for left, after in earlier)
    return count


def against_best(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of trials with further columns.

    `fixed`: whether rule and k never change. `counted_s`: the time to the target, at most NEVER times the fastest time
    of the scenario with the same seed. `best`: the fixed contender of the scenario with the least geometric mean.
    `ratio`: counted_s over that of `best`. `other_ratio`: counted_s over that of the fixed contender that is best for
    all other seeds, which excludes luck; missing for a single seed. Both ratios are missing if no fixed contender
    reached the target.
    """
    found = []
    for _, rows in trials.groupby(SCENARIO, sort=False):
        times = rows.pivot_table(index="seed", columns="contender", values="time_to_target_s", dropna=False)
        times = times.astype(float).reindex(columns=list(dict.fromkeys(rows["contender"])))
        fastest = times.min(axis=1).fillna(1.0)
        counted = times.fillna(math.inf).clip(upper=NEVER * fastest, axis=0)
        fixed = [name for name in counted if name == "all" or ":" in str(name)]
        reached = [name for name in fixed if times[name].notna().any()]
        logs = np.log(counted)
        best = min(reached, key=lambda name: logs[name].mean(), default=None)
        more = pd.DataFrame({"counted_s": counted.stack()})
        more["best"], more["ratio"], more["other_ratio"] = best, math.nan, math.nan
        if best is not None:
            more["ratio"] = counted.div(counted[best], axis=0).stack()
            if len(counted) > 1:
                without = logs[fixed].sum() - logs[fixed]
                chosen = without.idxmin(axis=1)
                of_others = pd.Series({seed: counted.loc[seed, name] for seed, name in chosen.items()})
                more["other_ratio"] = counted.div(of_others, axis=0).stack()
        joined = rows.merge(more.reset_index(), on=["seed", "contender"])
        found.append(joined.assign(fixed=joined["contender"].isin(fixed)))
    return pd.concat(found, ignore_index=True)


def gmean(values: "pd.Series[Any]") -> float:
    return float(np.exp(np.log(values.astype(float)).mean())) if len(values) else math.nan


def chosen(found: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each scenario, with the default objective's figures."""
    rows = []
    for key, trials in found[found["contender"] == DEFAULT].groupby(SCENARIO, sort=False):
        among = found[(found[SCENARIO] == list(key)).all(axis=1)]
        waiting = among[among["contender"] == "all"]["ratio"]
        ends = trials["ends_with"].dropna()
        rows.append(
            dict(zip(SCENARIO, key, strict=True))
            | {
                "kind": trials["kind"].iloc[0],
                "best fixed": trials["best"].iloc[0],
                "median": float(trials["ratio"].median()),
                "mean": gmean(trials["ratio"]),
                "others": gmean(trials["other_ratio"]),
                "k = n / it": gmean(waiting) / gmean(trials["ratio"]) if len(waiting) else math.nan,
                "ends with": max(sorted(set(ends)), key=list(ends).count, default=""),
                "least share": float(trials["least_share"].astype(float).mean()),
                "changes": float(trials["changes"].mean()),
                "undone": float(trials["undone"].mean()),
                "reached": f"{trials['time_to_target_s'].notna().sum()} of {len(trials)}",
            }
        )
    return pd.DataFrame(rows)


def constant_means(found: pd.DataFrame) -> "pd.Series[float]":
    """Return the geometric mean of each fixed contender's ratios over all scenarios, the least first. Contenders that a
    scenario lacks are left out."""
    fixed = found[found["fixed"] & found["ratio"].notna()]
    means = fixed.groupby(["contender", *SCENARIO], sort=False)["ratio"].apply(gmean)
    count = means.groupby("contender").size()
    whole = means[means.index.get_level_values("contender").isin(count.index[count == count.max()])]
    return whole.groupby("contender").apply(gmean).sort_values()


def progress(experiment: Experiment) -> pd.DataFrame:
    """Return the table of the default objective: median above 5 % is `no`, mean above 15 % is `NO`."""
    found = chosen(against_best(experiment.summary)).drop(columns=["kind", "least share"])
    marks = [
        "NO" if mean > MEAN else "no" if mid > MEDIAN else "yes"
        for mid, mean in zip(found["median"], found["mean"], strict=True)
    ]
    found.insert(len(SCENARIO) + 4, "near", marks)
    return found


def constants(experiment: Experiment) -> pd.DataFrame:
    means = constant_means(against_best(experiment.summary))
    return pd.DataFrame({"rule:k": means.index, "mean over the worlds": means.to_numpy()})


def figure(experiment: Experiment) -> Figure:
    """Draw the default objective's ratio to the best fixed choice by world, with a panel for each learning rate."""
    found = against_best(experiment.summary)
    rows = found[found["contender"] == DEFAULT]
    axes: Any = draw(
        rows,
        "world",
        "ratio",
        label="time, of the best fixed",
        lines="job.workers",
        panels="model.learning_rate",
        one=1.0,
    )
    drawn: Figure = axes[0].figure
    return drawn


def claims(experiment: Experiment) -> Iterator[Verdict]:
    yield from judged(against_best(experiment.summary))


def judged(found: pd.DataFrame) -> Iterator[Verdict]:
    """Yield the verdicts on the default objective, and on the predicted iteration times."""
    mine = chosen(found)
    if len(mine):
        known = mine.dropna(subset=["mean"])
        yield from _near(known)
        yield from _better_than_constant(found, known)
        yield from _of_kinds(mine)
    yield from _predicted(found)


def _near(known: pd.DataFrame) -> Iterator[Verdict]:
    """Compare the default with the best rule and k, which only hindsight knows, and with the best of other seeds."""
    if len(known):
        near = known["median"] <= MEDIAN
        yield Verdict(
            claim=f"{DEFAULT}: in each scenario's median within 5% of the best fixed rule and k in hindsight",
            holds=bool(near.all()),
            numbers=f"{near.sum()} of {len(near)}, mean of medians x {gmean(known['median']):.2f}",
        )
        worst = known.loc[known["mean"].idxmax()]
        yield Verdict(
            claim=f"{DEFAULT}: in each scenario's mean within 15% of the best fixed rule and k in hindsight",
            holds=bool((known["mean"] <= MEAN).all()),
            numbers=f"{(known['mean'] <= MEAN).sum()} of {len(known)}; worst x {worst['mean']:.2f} in {_name(worst)}",
        )
    others = known["others"].dropna()
    if len(others):
        yield Verdict(
            claim=f"{DEFAULT}: on average within 5% of the rule and k that are the best of the other seeds",
            holds=gmean(others) <= MEDIAN,
            numbers=f"x {gmean(others):.2f} over {len(others)} scenarios",
        )


def _better_than_constant(found: pd.DataFrame, known: pd.DataFrame) -> Iterator[Verdict]:
    """Compare the default with the rule and part of n that is best for all scenarios together."""
    fixed = constant_means(found)
    if len(known) > 1 and len(fixed):
        yield Verdict(
            claim=f"{DEFAULT}: on average faster than any one rule and part of n in all scenarios",
            holds=gmean(known["mean"]) < fixed.iloc[0],
            numbers=f"x {gmean(known['mean']):.2f} against x {fixed.iloc[0]:.2f} with {fixed.index[0]}",
        )


def _of_kinds(mine: pd.DataFrame) -> Iterator[Verdict]:
    """Judge the worlds with skewed data, the shares of all workers, and the changes in stationary worlds."""
    for _, row in mine[(mine["kind"] == "skewed") & mine["k = n / it"].notna()].iterrows():
        yield Verdict(
            claim=f"{_name(row)}: {DEFAULT} faster than k = n",
            holds=row["k = n / it"] > 1,
            numbers=f"{row['k = n / it']:.2f} times; {row['reached']} reached the target",
        )
    shares = mine.dropna(subset=["least share"])
    if len(shares):
        least = shares.loc[shares["least share"].idxmin()]
        yield Verdict(
            claim=f"{DEFAULT}: no worker has less than {STARVED:.0%} of an equal share of the sums",
            holds=least["least share"] >= STARVED,
            numbers=f"least {least['least share']:.2f} in {_name(least)}",
        )
    stationary = mine[mine["kind"] == "stationary"]
    if len(stationary):
        undone = stationary["undone"].mean()
        yield Verdict(
            claim=f"{DEFAULT}: stable in stationary worlds, at most {UNDONE:g} changes a training are taken back",
            holds=undone <= UNDONE,
            numbers=f"{undone:.2f} of {stationary['changes'].mean():.2f} changes a training",
        )


def _predicted(found: pd.DataFrame) -> Iterator[Verdict]:
    """Compare predicted with measured iteration times by fixed rule and k, in stationary worlds."""
    known = found[found["fixed"] & (found["kind"] == "stationary") & found["prediction_error"].notna()]
    medians = known.groupby(["contender", *SCENARIO], sort=False)["prediction_error"].median()
    for name, several in medians.groupby("contender", sort=False):
        errors: Mapping[Any, float] = several.to_dict()
        worst = max(errors.values(), key=abs)
        yield Verdict(
            claim=f"{name}: predicted iteration time within {NEAR:.0%} of the measured one in stationary scenarios",
            holds=abs(worst) <= NEAR,
            numbers=f"{fmean(errors.values()):+.1%} on average, worst {worst:+.1%}, {len(errors)} scenarios",
        )


def _name(row: "pd.Series[Any]") -> str:
    return f"{row['world']}, {row['job.workers']} workers, rate {row['model.learning_rate']:g}"
