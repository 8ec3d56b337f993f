"""run.seeds gives each seed its own run, and means with intervals over the seeds, paired by seed."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy import stats

from kofn.cli.main import main
from kofn.report.interval import Interval
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from tests.run.fake_run import two_trials
from tests.sim.lab import COSTS, written


def kofn(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], env={"KOFN_STATE_DIR": "/nowhere", "COLUMNS": "200"})


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Simulate three seeds from 4 on, with two trials each."""
    path = tmp_path_factory.mktemp("seeds")
    costs = path / "costs.json"
    COSTS.save(costs)
    config = written(path, target=0.9, iterations=300)
    settings = ("--set", "run.seeds=3", "--set", "run.seed=4", "--trial", "throughput", "--trial", "all")
    return path / "out", kofn("simulate", config, *settings, "--costs", costs, "--out", path / "out", "--json")


@pytest.mark.slow
def test_each_seed_has_its_own_run(simulated: tuple[Path, Result]) -> None:
    out, done = simulated
    assert done.exit_code == 0, done.output
    for seed in (4, 5, 6):
        config = Config.load(out / f"seed-{seed}" / "effective.toml")
        assert (config.run.seed, config.run.seeds) == (seed, 1)
        assert (out / f"seed-{seed}" / "report.html").exists()
    times = {seed: trials(out, seed)[0]["time_to_target_s"] for seed in (4, 5, 6)}
    assert len(set(times.values())) == 3, "runs of different seeds must differ"


def trials(out: Path, seed: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = json.loads((out / f"seed-{seed}" / "summary.json").read_text())["trials"]
    return found


@pytest.mark.slow
def test_means_and_intervals_are_over_the_seeds_and_ratios_within_them(simulated: tuple[Path, Result]) -> None:
    out, done = simulated
    document = json.loads(done.stdout)
    assert document == json.loads((out / "summary.json").read_text())
    assert (document["ok"], document["seeds"]) == (True, [4, 5, 6])
    chosen, everyone = document["over_seeds"][0]["trials"]
    times = np.array([[trial["time_to_target_s"] for trial in trials(out, seed)] for seed in (4, 5, 6)])
    assert chosen["time_to_target_s"]["values"] == times[:, 0].tolist()
    logs = np.log(times[:, 0])
    low, high = np.exp(stats.t.interval(0.95, 2, np.mean(logs), stats.sem(logs)))
    found = chosen["time_to_target_s"]
    mean = math.prod(times[:, 0]) ** (1 / 3)
    assert (found["n"], found["mean"], found["low"], found["high"]) == pytest.approx((3, mean, low, high))
    ratios = times[:, 1] / times[:, 0]
    assert chosen["against_baseline"]["values"] == pytest.approx(ratios.tolist())
    assert chosen["against_baseline"]["mean"] == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert everyone["against_baseline"]["mean"] == 1.0
    page = (out / "report.html").read_text()
    assert "n = 3 seeds" in page
    assert 'href="seed-5/report.html"' in page
    with (out / "figures" / "times-1.csv").open(newline="") as file:
        drawn = {(row["seed"], row["trial"]): float(row["time_to_target_s"]) for row in csv.DictReader(file)}
    assert drawn["5", "all"] == times[1, 1]


@pytest.mark.slow
def test_runs_are_listed_and_reported_again(simulated: tuple[Path, Result]) -> None:
    out, done = simulated
    (out / "report.html").unlink()
    again = kofn("report", out, "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, json.loads(done.stdout))
    assert (out / "report.html").exists()
    (listed,) = json.loads(kofn("runs", "--folder", out.parent, "--json").stdout)
    assert (listed["result"], listed["trials"]) == ("ok", ["throughput", "all"])


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "compare", "out", "out"),
        ("schedule", "out"),
        ("watch", "--web", "out"),
        ("run", "--resume", "out"),
    ],
)
def test_commands_of_one_run_refuse_a_run_of_several_seeds(tmp_path: Path, command: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    two_trials(out).update_record(seeds=(4, 5, 6))
    refused = kofn(*(str(out) if word == "out" else word for word in command))
    assert refused.exit_code == 2, refused.output
    assert f"{out} must be the folder of one run, got 3 runs with a seed each" in refused.output
    assert f"{out}/seed-4 for example" in refused.output


@pytest.mark.slow
def test_stopped_run_shows_the_finished_seeds(simulated: tuple[Path, Result]) -> None:
    out, _ = simulated
    why = "stopped by SIGINT (Ctrl-C)"
    parent, cut = RunFolder.open(out, several_seeds=True), RunFolder.open(out / "seed-6")
    parent.update_record(finished=0, ended=why)
    cut.update_record(finished=1, ended=why)
    cut.jobs[0].trials[1].sums(0).unlink()
    done = kofn("report", out, "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["failures"] == [f"seed 6: trial all: did not end: {why}"]
    assert [entry["runs"] for entry in document["over_seeds"][0]["trials"]] == [3, 2]
    assert [entry["against_baseline"]["n"] for entry in document["over_seeds"][0]["trials"]] == [3, 2]


def test_single_value_has_no_bounds() -> None:
    assert Interval.of([]) is None
    one = Interval.of([2.0])
    assert one is not None
    assert (one.mean, one.low, one.text("{:.1f} s")) == (2.0, None, "2.0 s")
    two = Interval.of([1.0, 3.0])
    assert two is not None
    factor = math.exp(12.7062 * math.log(3) / 2)
    assert (two.mean, two.low, two.high) == pytest.approx((3**0.5, 3**0.5 / factor, 3**0.5 * factor), rel=1e-4)
    assert two.text("{:.2f}") == "1.73 (0.00 to 1861.06)"
    arithmetic = Interval.of([1.0, 0.0])
    assert arithmetic is not None
    assert (arithmetic.mean, arithmetic.low) == (0.5, pytest.approx(0.5 - 12.7062 * 0.5, rel=1e-4))
