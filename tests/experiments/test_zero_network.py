"""examples/experiments/zero-network.toml: the expected bytes of a step, the claims, and one real run."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import kofn
from kofn.cli.main import main
from kofn.experiments.experiment_file import HOOKS, ExperimentFile
from tests.experiments.given import EXAMPLES, GivenResults

FILE = EXAMPLES / "zero-network.toml"


def point_of(name: str):
    (point,) = ExperimentFile.load(FILE).only({"contender": [name], "network.link_mbps": ["50.0"]}).points()
    return point


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
    own, elements = point_of(name).own, 1024
    link_bytes = HOOKS.load("zero_network:link_bytes")
    found = link_bytes(own, elements, 4)
    assert [size / elements for size in found] == [up, down]
    warm = link_bytes(own, elements, 4, warm=True)
    assert warm[0] >= found[0] and (warm != found) == ("bits" in own)


def test_script_trains_what_the_file_says() -> None:
    config = point_of("stage 1, 1 bit, two-sided, gloo").config()
    given = "--optimizer kofn --stage 1 --bits 1 --gloo --steps 12 --freeze-step 4 --batch 16 --rate 0.0005 --hidden"
    assert list(config.torch.arguments) == [*given.split(), "1024", "1024"]
    assert (config.job.words, point_of("stage 1, 8 bits").config().job.words) == (4, 32)


def test_time_to_the_loss_counts_the_warm_up_at_its_own_cost() -> None:
    ExperimentFile.load(FILE)
    to_loss_s = HOOKS.load("zero_network:to_loss_s")
    assert to_loss_s(50, 30, 2.0, 0.5) == 2.0 * 30 + 0.5 * 20
    assert to_loss_s(40, 0, 3.0, 3.0) == 3.0 * 40
    assert to_loss_s(20, 30, 2.0, 0.5) == 2.0 * 20, "the loss is reached before the end of the warm-up"
    assert to_loss_s(None, 30, 2.0, 0.5) is None


def arm(name: str, step_s: float, *, up: float = 1e6, steps: float | None = 100.0) -> dict[str, object]:
    own, to_loss_s = point_of(name).own, None if steps is None else steps * step_s
    return {
        **{"network.link_mbps": 50.0, "contender": name, "seed": 1, "stage": own["stage"], "bits": own.get("bits", 32)},
        **{"gloo": own.get("gloo", False), "step_s": step_s, "up_bytes": up},
        **{"steps": steps, "to_loss_s": to_loss_s},
    }


def claims(few_s: float, up: float, steps: float | None = 100.0) -> dict[str, bool | None]:
    rows = [
        arm("stage 1, 1 bit", few_s, up=up, steps=steps),
        arm("stage 1, 32 bits", 1.0, up=28e6),
        arm("stage 1, 32 bits, gloo", 1.0),
        arm("stage 1, 1 bit, two-sided, gloo", 0.3),
    ]
    found = GivenResults(FILE, rows)
    assert "two-sided" in str(HOOKS.load("zero_network:to_the_loss")(found))
    return {each.claim.split(" Mbit/s ")[1]: each.holds for each in HOOKS.load("zero_network:claims")(found)}


def test_claims_hold_or_fail() -> None:
    assert [*claims(0.2, 1e6).values()] == [True, True, True]
    assert [*claims(0.21, 1e6).values()] == [True, False, True]
    assert [*claims(0.3, 1.1e6).values()] == [False, False, False]
    assert [*claims(0.2, 1e6, None).values()] == [True, None, None], "without the steps of zero.toml"


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch")
def test_run_counts_the_bytes_of_the_formulas(tmp_path: Path) -> None:
    names = ["stage 2, 1 bit", "stage 2, 32 bits, gloo"]
    only = ["--only", "network.link_mbps=200.0", *(word for name in names for word in ("--only", f"contender={name}"))]
    result = CliRunner().invoke(main, ["experiment", str(FILE), *only, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    found = kofn.read(tmp_path / "out").summary
    assert sorted(found["contender"]) == names
    for row in found.to_dict("records"):
        assert row["up_bytes"] == pytest.approx(row["up_formula_bytes"], rel=0.15)
        assert row["down_bytes"] == pytest.approx(row["down_formula_bytes"], rel=0.15)
    for summary in (tmp_path / "out").glob("cells/*/seed-1/summary.json"):
        (trial,) = json.loads(summary.read_text())["trials"]
        assert trial["memory"]["parameters"] == pytest.approx(5 * 1_126_410, rel=0.01), "the model and a shard"
