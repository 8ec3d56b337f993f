"""`kofn experiment zero`: workers in lockstep equal those at a switch; the report of trainings."""

import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kofn.experiments.command import command
from kofn.experiments.zero.contenders import CONTENDERS, REFERENCE
from kofn.experiments.zero.tables import arms
from kofn.experiments.zero.training import TASKS, Learned, train
from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_host.arrays import Floats
from kofn_host.zero import Lockstep, LockstepMean, LockstepSwitch, SwitchMean
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


@pytest.mark.long
def test_seed_decides_which_workers_are_late() -> None:
    contender = CONTENDERS["stage 1, 1 bit, k = 3 of 4"]
    one, again, other = (train(TASKS["digits"], contender, seed, 90) for seed in (1, 1, 2))
    assert one == again
    assert one.losses != other.losses
    assert one.alike and one.conserved
    losses = [one.losses[step] or 0 for step in (60, 90)]
    assert losses[1] < 0.6 < losses[0]


def test_diverging_training_is_an_outcome() -> None:
    task = replace(TASKS["digits"], rate=1e9, steps=6, freeze_step=3, every=2)
    found = train(task, CONTENDERS["stage 2, 1 bit"], 1)
    assert found.losses[6] is found.alike is None
    assert found.conserved


@pytest.mark.long
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch")
def test_gpt_learns_in_few_bits() -> None:
    task = replace(TASKS["gpt"], freeze_step=10)
    found = train(task, CONTENDERS["stage 3, 1 bit, k = 3 of 4"], 1, 30)
    assert found.alike and found.conserved
    losses = [found.losses[step] or math.inf for step in (10, 20, 30)]
    assert losses == sorted(losses, reverse=True)


def test_one_workers_error_ends_all() -> None:
    def fail(rank: int) -> None:
        if rank == 1:
            raise ValueError("worker 1 fails")
        team.all(rank, rank, sum)

    team = Lockstep(WORKERS)
    with pytest.raises(ValueError, match="worker 1 fails"):
        team.run(fail)


@pytest.mark.slow
def test_command_shows_and_writes_every_training(tmp_path: Path) -> None:
    words = ["zero", "--convergence", "--task", "digits", "--seeds", "1", "--steps", "65", "--out", str(tmp_path)]
    result = CliRunner().invoke(command, [*words, "--contender", "stage 3, 1 bit"])
    assert result.exit_code == 0, result.output
    rows = {row["training"]["contender"]: row for row in json.loads((tmp_path / "zero.json").read_text())}
    reference, voted = (rows[name]["learned"] for name in (REFERENCE, "stage 3, 1 bit"))
    assert len(voted["losses"]) == 13
    assert reference["losses"]["60"] == voted["losses"]["60"], "all arms have the same losses during the exact warm-up"
    again = CliRunner().invoke(command, ["zero", "--report-only", "--out", str(tmp_path)])
    assert again.exit_code == 0
    shown = [[line for line in one.output.splitlines() if line[:5] in {"32 bi", "stage"}] for one in (result, again)]
    assert len(shown[0]) == 2
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--convergence", "--contender", "stage 3, 1 bits"], "did you mean 'stage 3, 1 bit'?"),
        (["--convergence", "--report-only"], "--report-only needs --out with the folder of an experiment, not none"),
        (["--network", "--report-only", "--out", "absent"], "needs --out with the folder of an experiment, not absent"),
        (["--memory", "--report-only"], "--report-only is not for --memory, of which no results are kept"),
        (["--convergence", "--out", __file__], f"Directory '{__file__}' is a file."),
    ],
)
def test_invalid_command_lines_are_refused(words: list[str], error: str) -> None:
    refused = CliRunner().invoke(command, ["zero", *words], env={"COLUMNS": "300"})
    assert refused.exit_code == 2
    assert error in refused.output


@pytest.mark.slow
def test_ctrl_c_message_says_how_to_continue(tmp_path: Path) -> None:
    """The exit code is 130, since 1 means that workers differ."""
    words = ["--convergence", "--task", "digits", "--processes", "1", "--out", str(tmp_path)]
    start = [sys.executable, "-c", "from kofn.cli.start import main; main()", "experiment", "zero", *words]
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("1 of 87: digits, ")
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert said.splitlines()[-2:] == [
        "kofn experiment zero: stopped by SIGINT (Ctrl-C)",
        f"the same command with --out {tmp_path} continues",
    ]


def test_missed_target_is_infinite() -> None:
    def learned(*losses: float | None) -> Learned:
        return Learned(losses=dict(enumerate(losses, 1)), conserved=True, alike=True)

    found = arms(
        {
            (REFERENCE, 1): learned(2.0, 1.0),
            ("good", 1): learned(1.004, 1.0),
            ("bad", 1): learned(1.5, 1.006),
            ("diverged", 1): learned(1.5, None),
        }
    )
    assert [arm.steps for arm in found] == [[2], [1], [float("inf")], [float("inf")]]
    assert [arm.near for arm in found] == [1, 1, 0, 0]
