"""`kofn chaos`: every scenario is a valid run, the table shows the outcomes, and one scenario runs for real."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from kofn.experiments.chaos.command import command
from kofn.experiments.chaos.outcomes import ScenarioOutcome, outcome_row, outcomes_table
from kofn.experiments.chaos.scenarios import FaultScenario, scenarios
from kofn.experiments.reader import frame
from kofn.report.summary import TrialSummary
from kofn.run.plan import make_plan
from kofn_common.config.dump import to_toml
from tests.run.real_run import KOFN, OWN_NETWORK

SCENARIOS = list(scenarios())

SUMMARY = TrialSummary(
    objective="throughput", time_to_target_s=5.0, iterations_to_target=100, duration_s=5.0, iterations=100,
    best_accuracy=0.95, owned_accuracy=None, median_iteration_s=0.05, mean_iteration_s=0.05,
    predicted_iteration_s=0.05, late_gradients=0, late_by_worker=(0, 0), discarded_by_worker=(0, 0),
    bytes_sent=1, bytes_received=1, packets_sent=1, packets_received=1, retransmissions=1234, k_iterations={2: 100},
    restarts=2, rejoins=1, regroups=0, longest_stall_s=1.5, checksum_errors=0, switch_checksum_errors=0, peer_fetches=0,
    missed_events=(), resumed=(), identity_error=None, conservation_error=None, conservation_unchecked=None,
)  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("target", ["embedded", "bmv2"])
def test_every_scenario_is_a_run(scenario: FaultScenario, target: str, tmp_path: Path) -> None:
    if target == "bmv2" and scenario.embedded_only:
        pytest.skip(scenario.embedded_only)
    paths = [tmp_path / f"{number}.toml" for number in range(len(scenario.jobs))]
    for path, config in zip(paths, scenario.jobs, strict=True):
        path.write_text(to_toml(config))
    plan = make_plan(*paths, target=target)
    assert [config.event for config in plan.configs] == [config.event for config in scenario.jobs]
    assert plan.shared.network.target == target


def test_matrix_is_complete() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert names[0] == "fault-free"
    assert len(set(names)) == len(names) >= 12
    changes = next(scenario for scenario in SCENARIOS if scenario.name == "k-changes").jobs[0].event
    assert len(changes) == 100


def test_other_objective_is_used_where_the_scenario_has_none() -> None:
    """A job of three workers has at most k = 3."""
    by_name = {scenario.name: scenario.under("async:4").jobs for scenario in SCENARIOS}
    assert by_name["loss-10"][0].run.trials == ("async:4",)
    assert [job.run.trials for job in by_name["two-jobs"]] == [("async:4",), ("async:3",)]
    assert by_name["partition-all"][0].run.trials == ("all",)
    for jobs in by_name.values():
        for job in jobs:
            job.check()
    result = CliRunner().invoke(command, ["--objective", "async:5"])
    assert result.exit_code == 2
    assert "K <= workers = 4, got 'async:5'" in result.output


def test_unknown_scenarios_are_named() -> None:
    result = CliRunner().invoke(command, ["loss-1", "nonsense"])
    assert result.exit_code == 2
    assert "SCENARIO must be among fault-free, loss-1" in result.output


def test_table_shows_what_failed(tmp_path: Path) -> None:
    def outcome(name: str, summary: TrialSummary | None, job: int = 1) -> ScenarioOutcome:
        return ScenarioOutcome(
            scenario=name, story="", job=job, passed=summary is not None, failures=(), summary=summary
        )

    slow = replace(SUMMARY, duration_s=10.0, identity_error="replicas differ")
    outcomes = [
        outcome("fault-free", SUMMARY),
        outcome("loss", slow),
        outcome("two", SUMMARY, 1),
        outcome("two", SUMMARY, 2),
        outcome("dead", None),
    ]
    with (tmp_path / "out").open("w+") as file:
        Console(file=file, width=132).print(outcomes_table("embedded", outcomes))
        file.seek(0)
        lines = [line.split() for line in file]
    assert lines[1] == ["fault-free", "5.0", "s", "1.00", "100", "1,234", "2", "1", "-", "1.5", "s", "yes", "exactly"]
    assert lines[2][3] == "2.00"
    assert lines[2][-2:] == ["NO", "exactly"]
    assert [line[:3] for line in lines[3:5]] == [["two,", "job", "1"], ["two,", "job", "2"]]
    assert lines[5] == ["dead", "FAILED"]
    assert outcomes_table("embedded", [outcome("peers", replace(SUMMARY, ledger=False))]).cells[0][-1] == "-"
    assert "x fault-free" not in outcomes_table("embedded", outcomes[1:]).headings
    trials = frame([outcome_row("embedded", one) for one in outcomes])
    assert trials["passed"].tolist() == [True] * 4 + [False]
    assert trials["iterations"].dropna().tolist() == [100] * 4


@pytest.mark.root
@pytest.mark.long
def test_one_scenario_runs_for_real(tmp_path: Path) -> None:
    inside = [*OWN_NETWORK, sys.executable, "-c", KOFN]
    result = subprocess.run(
        [*inside, "chaos", "corruption", "--out", str(tmp_path / "out"), "--json"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KOFN_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (outcome,) = json.loads(result.stdout)["embedded"]
    assert outcome["passed"]
    assert outcome["summary"]["checksum_errors"] > 0
    assert outcome["summary"]["switch_checksum_errors"] > 0
    assert "[1/1] corruption: a bit flips in 5 % of all packets" in result.stderr
    assert (tmp_path / "out" / "embedded" / "corruption.toml").exists()
    assert "chaos,embedded,corruption,1,True" in (tmp_path / "out" / "results.csv").read_text()


@pytest.mark.root
@pytest.mark.long
def test_scenarios_that_a_collective_lacks_are_skipped(tmp_path: Path) -> None:
    inside = [*OWN_NETWORK, sys.executable, "-c", KOFN]
    ring = ["--objective", "all", "--set", "job.collective=ring", "--set", "run.max_iterations=20"]

    def chaos(*words: str) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KOFN_STATE_DIR": str(tmp_path / "state")}
        command = [*inside, "chaos", *words, *ring, "--out", str(tmp_path / words[0])]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    some = chaos("fault-free", "switch-killed")
    assert "skipped: " in some.stdout and "event.kill must be controller, " in some.stdout
    assert "skipped: " not in some.stdout.partition("switch-killed:")[0]
    assert "fault-free" in some.stdout.rpartition("x fault-free")[2]
    none = chaos("switch-killed")
    assert (none.returncode, "event.kill must be controller, " in none.stderr) == (2, True)


def test_scenarios_are_printed_as_json() -> None:
    result = CliRunner().invoke(command, ["--list", "--json", "loss-10"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"name": "loss-10", "story": "10 % of all packets lost, each way"}]


def test_users_objective_is_used_by_every_job() -> None:
    """Its name has a colon, like RULE:K."""
    loss = next(scenario for scenario in scenarios() if scenario.name == "loss-1").under("mine:pick")
    assert [config.run.trials for config in loss.jobs] == [("mine:pick",)]
