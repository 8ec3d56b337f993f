"""kofn.simulate for scripts and notebooks."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import kofn
from kofn_common.config.errors import ConfigError
from tests.sim.lab import COSTS, SMALL

CONFIG = SMALL.format(objective="fixed:2", target=0.9, iterations=12, rule="merge", weight=0.5, limit=8)


@pytest.mark.slow
def test_results_equal_the_commands(tmp_path: Path) -> None:
    COSTS.save(tmp_path / "costs.json")
    lines: list[str] = []
    run = kofn.simulate(
        CONFIG, trials=["fixed:2", "all"], costs=tmp_path / "costs.json", out=tmp_path / "out", progress=lines.append,
        run={"max_iterations": 15},
    )  # fmt: skip
    assert run.folder == tmp_path / "out"
    assert run.configs[0].run.max_iterations == 15
    assert run.metrics.groupby("trial").iteration.max().to_dict() == {"fixed:2": 15, "all": 15}
    assert set(run.metrics[run.metrics.trial == "all"].k) == {3}
    assert run.finished and not run.ok
    assert run.failures[0] in " ".join(lines), "the summary must say that the target is missed"
    assert any("iterations " in line for line in lines)


@pytest.mark.slow
def test_progress_false_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    COSTS.save(tmp_path / "costs.json")
    kofn.simulate(CONFIG, costs=tmp_path / "costs.json", out=tmp_path / "out", progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_progress_goes_to_stderr_outside_of_notebooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COSTS.save(tmp_path / "costs.json")
    kofn.simulate(CONFIG, costs=tmp_path / "costs.json", out=tmp_path / "out")
    said = capsys.readouterr()
    assert said.out == ""
    assert "trial fixed:2" in said.err


def test_unsupported_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(kofn.KofnError, match=r"^job\.start_workers is not simulated"):
        kofn.simulate(CONFIG, job={"start_workers": 2}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ctrl_c_ends_a_simulation_and_its_results_can_be_read(tmp_path: Path) -> None:
    COSTS.save(tmp_path / "costs.json")

    def give_up(line: str) -> None:
        if line.startswith("trial fixed:2:"):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        kofn.simulate(
            CONFIG, trials=["fixed:2", "all"], costs=tmp_path / "costs.json", out=tmp_path / "out", progress=give_up
        )
    run = kofn.read(tmp_path / "out")
    assert not run.finished
    assert "stopped by SIGINT (Ctrl-C)" in repr(run)
    assert run.metrics.trial.unique().tolist() == ["fixed:2"]


@pytest.mark.parametrize("trials", ["all", [3]])
def test_trials_that_are_no_list_of_objectives_are_named(trials: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trials must be a list of objectives, got .*: \['progress', 'all'\]"):
        kofn.simulate(CONFIG, trials=trials, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
