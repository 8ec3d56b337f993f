"""`kofn experiment zero --network`: the expected bytes of a step, the report of steps, and one real run."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from kofn.experiments.claims import judge
from kofn.experiments.command import command
from kofn.experiments.zero.network import FEW, WARM, NetworkArm, StepMeans
from kofn.experiments.zero.network_contenders import NETWORK
from kofn.experiments.zero.network_report import CLAIMS, network_tables
from kofn.experiments.zero.training import ELEMENTS, TASKS
from kofn_common.results.step_cost import STEPS_FILE, StepCost

FREEZE = TASKS["mlp"].freeze_step


def arm(name: str, warm_s: float, few_s: float, steps: float, *, up: float = 1e6) -> NetworkArm:
    means = [StepMeans(time_s=time_s, up=up, down=1e6) for time_s in (warm_s, few_s)]
    return NetworkArm(contender=NETWORK[name], mbps=50.0, warm=means[0], few=means[1], steps=steps)


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("stage 1, 32 bits, gloo", 9, 9),  # twice 3/4 of 4 bytes, and once more for the parameters
        ("stage 3, 32 bits, gloo", 12, 12),
        ("FSDP2", 12, 12),
        ("stage 1, 32 bits", 5, 8),  # a quarter of the parameters up, all down
        ("stage 2, 32 bits", 5, 5),
        ("stage 3, 32 bits", 6, 9),
        ("stage 1, 8 bits", 2, 5),
        ("stage 2, 8 bits", 2, 4.25),
        ("stage 1, 1 bit", 1.125, 4.375),  # counts of four workers have three bits
        ("stage 2, 1 bit", 1.125, 4.09375),
        ("stage 1, 1 bit, two-sided, gloo", 3.1875, 3.1875),
    ],
)
def test_bytes_of_a_step_follow_the_formulas(name: str, up: float, down: float) -> None:
    found = NETWORK[name].link_bytes(ELEMENTS, warm=False)
    assert (found.up / ELEMENTS, found.down / ELEMENTS) == (up, down)
    warm = NETWORK[name].link_bytes(ELEMENTS, warm=True)
    assert (warm.up >= found.up) and (warm != found) == (NETWORK[name].bits < 32)


def test_time_to_the_loss_counts_the_warm_up_at_its_own_cost() -> None:
    voting, whole = arm("stage 2, 1 bit", 2.0, 0.5, FREEZE + 20), arm("stage 2, 32 bits, gloo", 3.0, 3.0, FREEZE + 10)
    assert voting.to_loss_s == 2.0 * FREEZE + 0.5 * 20
    assert whole.to_loss_s == 3.0 * (FREEZE + 10)
    assert arm("stage 2, 1 bit", 2.0, 0.5, FREEZE - 10).to_loss_s == 2.0 * (FREEZE - 10), (
        "the loss is reached before the end of the warm-up"
    )


def test_claims_hold_or_fail() -> None:
    def claims(few_s: float, up: float) -> dict[str, bool]:
        found = [
            arm("stage 1, 1 bit", few_s, few_s, 100, up=up),
            arm("stage 1, 32 bits", 1.0, 1.0, 100, up=28e6),
            arm("stage 1, 32 bits, gloo", 1.0, 1.0, 100),
            arm("stage 1, 1 bit, two-sided, gloo", 0.3, 0.3, 100),
        ]
        arms = {50.0: {each.contender.name: each for each in found}}
        assert "stage 1, 1 bit, two-sided" in str([table.cells for table in network_tables(arms)])
        return {verdict.claim.split(" Mbit/s ")[1]: verdict.holds for verdict in judge(CLAIMS, arms)}

    assert [*claims(0.2, 1e6).values()] == [True, True, True]
    assert [*claims(0.21, 1e6).values()] == [True, False, True]
    assert [*claims(0.3, 1.1e6).values()] == [False, False, False]


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch")
def test_run_counts_the_bytes_of_the_formulas(tmp_path: Path) -> None:
    names = ["stage 2, 1 bit", "stage 2, 32 bits, gloo"]
    words = ["zero", "--network", "--mbps", "200", "--out", str(tmp_path)]
    result = CliRunner().invoke(command, [*words, *(word for name in names for word in ("--contender", name))])
    assert result.exit_code == 0, result.output
    for name in names:
        (folder,) = tmp_path.glob(f"{name.replace(', ', '-').replace(' ', '-')}-200-mbps/seed-1/all")
        costs = msgspec.json.decode((folder / STEPS_FILE.format(rank=2)).read_bytes(), type=list[StepCost])
        assert len(costs) == WARM + FEW
        expected = NETWORK[name].link_bytes(ELEMENTS, warm=False)
        few = costs[WARM + 1 :]
        assert sum(cost.up for cost in few) / len(few) == pytest.approx(expected.up, rel=0.15)
        assert sum(cost.down for cost in few) / len(few) == pytest.approx(expected.down, rel=0.15)
        summary = json.loads((folder.parent / "summary.json").read_text())["trials"][0]
        assert (summary["identity_error"], summary["conservation_error"]) == (None, None)
        assert summary["memory"]["parameters"] == pytest.approx(5 * ELEMENTS, rel=0.01), (
            "a worker has the model and a shard"
        )
