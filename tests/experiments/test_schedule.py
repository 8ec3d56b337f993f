"""schedule.toml: its cells, and the claims on made-up iteration times."""

from pathlib import Path

import pytest

from examples.experiments.schedule_layers import COMPUTE_MS, link_of, schedules
from kofn.experiments.cells import Cell, cells_of
from kofn.experiments.claims import verdicts
from kofn.experiments.experiment_file import ExperimentFile
from kofn_host.workload import LayeredWorkload, load_workload
from tests.experiments.given import EXAMPLES, GivenResults

FILE = EXAMPLES / "schedule.toml"


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return cells_of(ExperimentFile.load(FILE), Path("nowhere"))


def test_transfers_exceed_the_computation_by_the_named_factor(cells: list[Cell]) -> None:
    chosen = [cell for cell in cells if cell.config.layer]
    assert (len(cells), len(chosen)) == (13 * 9, 12 * 9)
    for cell in chosen:
        layers = cell.config.layer
        compute_ms = sum(layer.forward_ms + layer.error_ms + layer.weight_ms for layer in layers) - layers[0].error_ms
        assert compute_ms == pytest.approx(COMPUTE_MS)
        transfer_s = link_of(cell.config).transfer_s(sum(layer.elements for layer in layers))
        assert transfer_s / compute_ms * 1000 == pytest.approx(float(cell.point.axes["transfer"]), rel=1e-3)


def test_real_model_computes_layers(cells: list[Cell]) -> None:
    (cell,) = [cell for cell in cells if cell.labels["model"] == "real" and cell.labels["contender"] == "auto"]
    workload = load_workload(cell.config, 0)
    assert isinstance(workload, LayeredWorkload)
    assert [layer.elements for layer in workload.model.layers] == [65 * 960, 961 * 960, 961 * 10]
    assert cell.config.schedule.family == "auto"


def test_searches_have_time_for_all_candidates(cells: list[Cell]) -> None:
    found = {cell.labels["contender"]: cell.config for cell in cells}
    assert {name for name, config in found.items() if config.schedule.enumerate} == {
        "priority-tuned", "source", "late-front-tuned",
    }  # fmt: skip
    assert all(config.run.max_iterations == (400 if config.schedule.enumerate else 160) for config in found.values())


def test_claims_about_accelerators_hold_or_fail() -> None:
    seconds = {"sequential": 0.6, "buckets-1mb": 0.4, "priority": 0.42, "auto": 0.36}
    predicted_s = 0.4
    rows = [
        {
            "model": model, "transfer": transfer, "contender": name, "iteration_s": took_s, "of_bound": took_s / 0.3,
            "predicted_s": predicted_s, "schedule": "priority:1000:0",
        }
        for model, transfer in (("equal", "1"), ("real", "as it is"))
        for name, took_s in seconds.items()
    ]  # fmt: skip
    given = GivenResults(FILE, rows)
    found = verdicts(given)
    assert [(verdict.holds, verdict.numbers) for verdict in found] == [
        (True, "0.90 times that of buckets-1mb"),
        (False, "0.90 times that of buckets-1mb"),
        (True, "1.67 times"),
        (False, "1.2"),
        (False, "1.50 times as long with sequential"),
        (False, "0 of 5 pairs: not buckets-1mb before sequential, priority before sequential, auto before sequential, "
         "auto before buckets-1mb, auto before priority"),
    ]  # fmt: skip
    assert all("model = equal, transfer = 1" in verdict.claim for verdict in found), "no claim about the real model"
    assert schedules(given)[["family", "threshold", "front"]].to_dict("records")[0] == {
        "family": "priority", "threshold": "3.906 KiB", "front": "-",
    }  # fmt: skip
