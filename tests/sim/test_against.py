"""A finished run simulated again, and folders that are no such run."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kofn.sim.runner import command
from tests.sim.lab import COSTS, written


def simulated(folder: Path, *more: str) -> dict[str, object]:
    """Return the JSON that `kofn simulate` prints."""
    COSTS.save(folder / "costs.json")
    arguments = ["--costs", str(folder / "costs.json"), "--json", "--quiet", *more]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


@pytest.mark.slow
def test_simulation_against_itself_has_ratio_1(tmp_path: Path) -> None:
    """Configuration and trials are those of the folder."""
    config = written(tmp_path, iterations=30, target=0.3)
    simulated(tmp_path, str(config), "--out", str(tmp_path / "first"), "--trial", "fixed:2", "--trial", "all")
    found = simulated(tmp_path, "--against", str(tmp_path / "first"), "--out", str(tmp_path / "second"))
    assert [pair["objective"] for pair in found] == ["fixed:2", "all"]  # type: ignore[index]
    for pair in found:
        for name in ("time_to_target_s", "iterations_to_target", "mean_iteration_s"):
            figures: Any = pair[name]  # type: ignore[index]
            assert figures["ratio"] == pytest.approx(1.0), name
            assert figures["real"] == figures["simulated"]


@pytest.mark.slow
def test_other_costs_give_another_time(tmp_path: Path) -> None:
    config = written(tmp_path, iterations=30, target=0.3)
    simulated(tmp_path, str(config), "--out", str(tmp_path / "first"), "--trial", "all")
    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(json.loads((tmp_path / "costs.json").read_text()) | {"apply_s": 0.02}))
    arguments = [
        "--against",
        str(tmp_path / "first"),
        "--costs",
        str(slower),
        "--quiet",
        "--out",
        str(tmp_path / "next"),
    ]
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    (pair,) = json.loads(result.stdout)
    assert pair["mean_iteration_s"]["ratio"] > 1.2
    assert pair["iterations_to_target"]["ratio"] == 1.0, (
        "with k = n both use the same gradients, whatever the times are"
    )
    shown = CliRunner().invoke(command, [*arguments[:-1], str(tmp_path / "third")], catch_exceptions=False)
    assert "simulated / real" in shown.stdout


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_folder_that_is_no_finished_run_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    result = CliRunner().invoke(command, ["--against", str(tmp_path)])
    assert result.exit_code == 2
    assert f"--against {tmp_path}: not the folder of a finished run of one job" in result.output
    both = CliRunner().invoke(command, ["mine.toml", "--against", str(tmp_path)])
    assert both.exit_code == 2
    assert "the run's own configuration is simulated" in both.output
