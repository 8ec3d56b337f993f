"""examples/experiments/zero.toml: workers in lockstep equal those at a switch; trainings, and their comparison."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn.experiments.cells import Cell
from kofn.experiments.experiment_file import HOOKS, ExperimentFile, patched
from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_host.arrays import Floats
from kofn_host.zero import Lockstep, LockstepMean, LockstepSwitch, SwitchMean
from tests.experiments.given import EXAMPLES, GivenResults
from tests.system.zero.crews import WORDS, all_of, beneath_a_switch

WORKERS, ELEMENTS, STEPS = 3, 3000, 6


def given(rank: int, step: int) -> Floats:
    """Return values whose magnitudes are equal at all workers, so that any first contribution
    chooses the same scale.
    """
    magnitudes = np.random.default_rng(step).lognormal(sigma=2, size=ELEMENTS)
    return (magnitudes * np.random.default_rng([step, rank]).choice([-1, 1], ELEMENTS)).astype(np.float32)


@pytest.mark.parametrize("codec", ["onebit", "int8"])
def test_lockstep_equals_a_switch_to_the_bit(codec: str) -> None:
    compress, team = CompressSection(codec=codec), Lockstep(WORKERS)
    job = JobSection(workers=WORKERS, words=WORDS)
    switch = LockstepSwitch(team, ELEMENTS, job=job, compress=compress, average="gradients", k=WORKERS, seed=1)
    means = [LockstepMean(switch, rank) for rank in range(WORKERS)]
    found = team.run(lambda rank: [means[rank].all_reduce(given(rank, step)) for step in range(STEPS)])
    with beneath_a_switch(WORKERS, ELEMENTS, codec) as crew:
        real = [SwitchMean(each, ELEMENTS) for each in crew]
        wanted = all_of(WORKERS, lambda rank: [real[rank].all_reduce(given(rank, step)) for step in range(STEPS)])
        ledgers = [each.agent.ledger.residual.pending.copy() for each in crew]
    assert np.array_equal(found, wanted)
    assert all(
        np.array_equal(own.ledger.residual.pending, other) for own, other in zip(switch.encoders, ledgers, strict=True)
    )


def trained(task: str, contender: str, seed: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a cell's row, whose configuration has these changes, SECTION.KEY with `__` for the dot."""
    file = ExperimentFile.load(EXAMPLES / "zero.toml").only({"task": [task], "contender": [contender]})
    (point,) = file.points()
    patched(point.document, {key.replace("__", "."): value for key, value in changes.items()})
    cell = Cell(point=point, seed=seed, name=f"cell/seed-{seed}", out=Path("out"), modules=file.modules, scale=True)
    row = HOOKS.load("zero_training:row")(cell)
    return row | {"losses": {int(step): loss for step, loss in json.loads(row["losses"]).items()}}


@pytest.mark.long
def test_seed_decides_which_workers_are_late() -> None:
    name = "stage 1, 1 bit, k = 3 of 4"
    one, again, other = (trained("digits", name, seed, run__max_iterations=90) for seed in (1, 1, 2))
    assert one == again
    assert one["losses"] != other["losses"]
    assert one["fault"] is None
    assert one["losses"][90] < 0.6 < one["losses"][60]


def test_trainings_are_equal_until_the_end_of_the_warm_up() -> None:
    few = {"run__max_iterations": 8, "run__evaluate_every": 2, "own__freeze_step": 4}
    whole, frozen, voted = (
        trained("digits", name, **few) for name in ("32 bits", "32 bits, variance frozen", "stage 3, 1 bit")
    )
    for step, equal in ((2, True), (4, True), (6, False), (8, False)):
        assert (whole["losses"][step] == voted["losses"][step]) is equal
        assert (whole["losses"][step] == frozen["losses"][step]) is equal
    assert voted["kind"] == "votes" and voted["expanding"] is not None and whole["expanding"] is None


def test_diverging_training_is_an_outcome() -> None:
    few = {"run__max_iterations": 6, "run__evaluate_every": 2, "own__freeze_step": 3}
    found = trained("digits", "stage 2, 1 bit", model__learning_rate=1e9, **few)
    assert found["losses"][6] is found["loss"] is found["fault"] is None


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch")
def test_gpt_learns_in_few_bits() -> None:
    found = trained("gpt", "stage 3, 1 bit, k = 3 of 4", own__freeze_step=10, run__max_iterations=30)
    assert found["fault"] is None
    losses = [found["losses"][step] for step in (10, 20, 30)]
    assert losses == sorted(losses, reverse=True)


def test_one_workers_error_ends_all() -> None:
    def fail(rank: int) -> None:
        if rank == 1:
            raise ValueError("worker 1 fails")
        team.all(rank, rank, sum)

    team = Lockstep(WORKERS)
    with pytest.raises(ValueError, match="worker 1 fails"):
        team.run(fail)


def test_every_contender_is_trained_with_every_task() -> None:
    points = ExperimentFile.load(EXAMPLES / "zero.toml").points()
    assert len(points) == 29 * 3
    for point in points:
        config, name = point.config(scale=True), point.contender
        assert config.run.trials == (("fixed:3",) if "k = 3 of 4" in name else ("all",))
        codec = "onebit" if "1 bit" in name else "int8" if "8 bits" in name else "int32"
        assert (config.compress.codec, config.compress.error_feedback) == (codec, "no error feedback" not in name)
        assert config.compress.residual == (name.rpartition("residual ")[2] if "residual" in name else "exact")
        assert "stage" not in name or name.startswith(f"stage {point.own['stage']}")


def finished(contender: str, *losses: float | None, kind: str = "other") -> dict[str, Any]:
    last = {"loss": losses[-1], "losses": json.dumps(dict(enumerate(losses, 1))), "lost": None, "expanding": 0.01}
    return {"task": "digits", "contender": contender, "seed": 1, "kind": kind, **last}


def test_missed_loss_is_infinite() -> None:
    rows = [
        finished("32 bits", 2.0, 1.0),
        finished("good", 1.004, 1.0, kind="votes"),
        finished("bad", 1.5, 1.006, kind="two-sided"),
        finished("diverged", 1.5, None, kind="control"),
        finished("of another seed", 1.0, 1.0) | {"seed": 2},
    ]
    found = GivenResults(EXAMPLES / "zero.toml", rows)
    arms = HOOKS.load("zero_training:compared")(found)
    assert [arm.steps for arm in arms] == [[2], [1], [math.inf], [math.inf]]
    assert [arm.near for arm in arms] == [1, 1, 0, 0]
    verdicts = {verdict.claim.partition(", ")[2]: verdict for verdict in HOOKS.load("zero_training:claims")(found)}
    assert {claim.partition(":")[0]: verdict.holds for claim, verdict in verdicts.items() if "than" not in claim} == {
        "good": True,
        "bad": False,
        "diverged": True,
    }
    assert verdicts["good: no more steps than two-sided"].numbers == "1 and never steps, medians"
    (shown,) = HOOKS.load("zero_training:steps")(found).query("contender == 'diverged'").to_dict("records")
    assert (shown["steps"], shown["within 0.5 %"], shown["too large"]) == ("never", "0 of 1", "1.00%")
