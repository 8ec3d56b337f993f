"""The trainings of zero.toml, and their comparison with 32 bits."""

import json
import math
import runpy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import pandas as pd

import kofn
from kofn.experiments.claims import Verdict
from kofn.experiments.tables import count
from kofn_common.config.shards import CLASSES
from kofn_host.errors import GradientError
from kofn_host.workload import PIXELS, Perceptron, load_shard
from kofn_host.zero import (
    Lockstep,
    LockstepCalls,
    LockstepMean,
    LockstepSwitch,
    TwoSidedMean,
    ZeroOptimizer,
    ZeroSettings,
)

CHECKOUT = Path(kofn.__file__).parents[1]
"""The small GPT learns the documents of this checkout."""

BITS = {"int32": 32, "int8": 8, "onebit": 1}

NEAR = 0.005
"""The share by which a loss may be above that of 32 bits."""


class Digits:
    """A perceptron on 8 x 8 images of digits; `units` are the sizes of the layers' tensors."""

    def __init__(self, config, rank):
        model, run = config.model, config.run
        self._batch, self._data = model.batch, load_shard(rank, config.job.workers, run.seed)
        self._model, self.units = Perceptron(model.hidden, run.seed), units_of(model.hidden)
        self.parameters = self._model.parameters

    def gradient(self, step):
        return self._model.gradient(self._data.batch(step, self._batch))

    def evaluate(self):
        """Return the held-out loss."""
        return float(self._model.gradient(self._data.held_out)[0])


def units_of(hidden):
    """Return the sizes of weights and biases of a perceptron's layers."""
    return [[before * after, after] for before, after in pairwise((PIXELS, *hidden, CLASSES))]


def row(cell):
    """Train with a thread for each worker. Return the held-out losses, the last one and all by step; None is not
    finite."""
    config, own, workers = cell.config, cell.point.own, cell.config.job.workers
    settings, switch = _settings(config, own), None
    gpt = own.get("gpt") and runpy.run_path(str(CHECKOUT / "examples" / "workloads" / "small_gpt.py"))["SmallGPT"]
    learners = [(gpt or Digits)(config, rank) for rank in range(workers)]
    team = Lockstep(workers)
    calls = [LockstepCalls(team, rank) for rank in range(workers)]
    elements, rule = learners[0].parameters.size, config.run.trials[0]
    if settings.bits < 32 and not own.get("two_sided"):
        switch = LockstepSwitch(
            team,
            elements,
            job=config.job,
            compress=config.compress,
            average="contributors" if settings.votes_on_momentum else "gradients",
            k=workers if rule == "all" else int(rule.removeprefix("fixed:")),
            seed=config.run.seed,
            majority=own.get("majority", False),
        )
    losses = {}

    def train(rank):
        learner, mean = learners[rank], None if switch is None else LockstepMean(switch, rank)
        if own.get("two_sided"):
            mean = TwoSidedMean(calls[rank], elements)
        whole = [[size for unit in learner.units for size in unit]]
        zero = ZeroOptimizer(
            settings, learner.parameters, whole if settings.stage == 1 else learner.units, calls[rank], mean
        )
        for step in range(1, config.run.max_iterations + 1):
            _, gradient = learner.gradient(step)
            for number, unit in enumerate(zero.shards.units):
                zero.put(number, gradient[unit.begin : unit.end])
            zero.step(config.model.learning_rate)
            learner.parameters[:] = zero.gathered()
            if rank == 0 and step % config.run.evaluate_every == 0:
                loss = learner.evaluate()
                losses[step] = loss if math.isfinite(loss) else None

    alike = True
    try:
        team.run(train)
        alike = len({learner.parameters.tobytes() for learner in learners}) == 1
    except GradientError:  # a control diverges: gradients are not finite, or too large for a ledger
        losses[config.run.max_iterations] = None
    conserved = switch is None or all(encoder.ledger.accounts.totals().conserved for encoder in switch.encoders)
    return {
        "kind": _kind(config, own, settings),
        "loss": losses[max(losses)],
        "losses": json.dumps(losses),
        "lost": None if switch is None else switch.lost,
        "expanding": None if switch is None else switch.expanding,
        "fault": "workers have different parameters"
        if not alike
        else None
        if conserved
        else "a ledger is not conserved",
    }


def _settings(config, own):
    return ZeroSettings(
        stage=own.get("stage", 2),
        bits=1 if own.get("frozen") else BITS[config.compress.codec],
        freeze_step=own["freeze_step"],
        mask=own.get("mask", True),
        variance_floor=own.get("floor", 0.1),
        residual=config.compress.residual,
    )


def _kind(config, own, settings):
    """Return what a claim is about: a control, the two-sided scheme, or counted votes of all workers."""
    if own.get("majority") or not (config.compress.error_feedback and settings.mask):
        return "control"
    if own.get("two_sided"):
        return "two-sided"
    votes = config.compress.codec == "onebit" and config.run.trials == ("all",) and settings.residual == "exact"
    return "votes" if votes else "other"


@dataclass
class Compared:
    """The trainings of a contender with a task, compared with those of 32 bits with the same seeds."""

    task: str
    name: str
    kind: str
    ratios: list = field(default_factory=list)
    """Last losses, over those of 32 bits."""
    steps: list = field(default_factory=list)
    """Steps to the last loss of 32 bits; infinite if it is never reached."""
    lost: list = field(default_factory=list)
    expanding: list = field(default_factory=list)

    @property
    def near(self):
        return sum(ratio <= 1 + NEAR for ratio in self.ratios)


def compared(experiment):
    """Return all trainings, by task and contender, with the seeds that 32 bits also has."""
    rows = {(row["task"], row["contender"], row["seed"]): row for row in experiment.rows().to_dict("records")}
    found = {}
    for (task, name, seed), own in rows.items():
        reference = rows.get((task, experiment.baseline, seed))
        if reference is None:
            continue
        arm = found.setdefault((task, name), Compared(task, name, own["kind"]))
        target, losses = _last(reference), json.loads(own["losses"])
        near = (step for step, loss in losses.items() if loss is not None and loss <= target * (1 + NEAR))
        arm.ratios.append(_last(own) / target)
        arm.steps.append(float(next(near, math.inf)))
        for column in ("lost", "expanding"):
            getattr(arm, column).extend([] if pd.isna(own[column]) else [own[column]])
    return list(found.values())


def _last(row):
    return math.inf if pd.isna(row["loss"]) else row["loss"]


def steps(experiment):
    """Return a row for each task and contender."""
    return pd.DataFrame(
        {
            "task": arm.task,
            "contender": arm.name,
            "steps": count(median(arm.steps), never="never"),
            "within 0.5 %": f"{arm.near} of {len(arm.ratios)}",
            "lost": f"{max(arm.lost):.2%}" if arm.lost else "-",
            "too large": f"{max(arm.expanding):.2%}" if arm.expanding else "-",
        }
        for arm in compared(experiment)
    )


def claims(experiment):
    """Compare every contender but the controls with 32 bits, and counted votes with the two-sided scheme, which also
    quantises the sum."""
    arms = compared(experiment)
    for arm in arms:
        ratios = ", ".join(f"{ratio:.3f}" for ratio in arm.ratios)
        if arm.kind == "control":
            yield Verdict(
                claim=f"{arm.task}, {arm.name}: never gets there",
                holds=all(ratio > 1 + NEAR for ratio in arm.ratios),
                numbers=ratios,
            )
        elif arm.name != experiment.baseline:
            yield Verdict(
                claim=f"{arm.task}, {arm.name}: at most {NEAR:.1%} above 32 bits after as many steps, with every seed",
                holds=arm.near == len(arm.ratios),
                numbers=f"{arm.near} of {len(arm.ratios)}, {ratios}",
            )
    for arm in [one for one in arms if one.kind == "votes"]:
        for other in [one for one in arms if one.kind == "two-sided" and one.task == arm.task]:
            own, theirs = median(arm.steps), median(other.steps)
            yield Verdict(
                claim=f"{arm.task}, {arm.name}: no more steps than two-sided",
                holds=own <= theirs,
                numbers=f"{count(own, never='never')} and {count(theirs, never='never')} steps, medians",
            )
