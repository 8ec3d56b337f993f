"""`kofn experiment k`: a matrix runs, is interrupted and continues; its report; one for real."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kofn.experiments import matrix
from kofn.experiments.command import command
from kofn.experiments.findings import conclude
from kofn.experiments.k.command import find
from kofn.experiments.k.worlds import WORKERS, WORLDS, scenario
from kofn.experiments.matrix import Scenario, cells, run_cells
from kofn.run.errors import InterruptedRun, RunError
from kofn.run.plan import RunPlan, make_plan, prepare
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import RunFolder
from tests.run import fake_run
from tests.run.real_run import OWN_NETWORK, processes
from tests.waiting import until

OBJECTIVES = ("merge:2", "all", "throughput")

NAMES = ("shifting", "one-slow")

SHIFTING, ONE_SLOW = (f"{name}-4w-0.1" for name in NAMES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


class Faked:
    """Carries a plan out as if workers had trained; `instead` may do something else first."""

    def __init__(self, instead: Callable[[RunPlan], None] = lambda plan: None) -> None:
        self.seen: list[tuple[str, int, bool]] = []
        self.instead = instead

    def __call__(self, plan: RunPlan, console: Console) -> RunFolder:
        run = prepare(plan, "{}")
        self.seen.append((plan.folder.parent.name, plan.shared.run.seed, plan.check))
        self.instead(plan)
        k = {"merge:2": 2, "all": 4, "throughput": 3}
        trials = [fake_run.simulate(k=lambda i, k=k[name]: k) for name in plan.shared.run.trials]
        for fake in trials:
            for status in fake.statuses:
                status["overhead_s"], status["expected"][0]["predicted_s"] = 0.001, 0.015
        fake_run.write_job(run.jobs[0], trials)
        return run


def run(folder: Path, carry_out: Faked, *names: str, seeds: int = 2) -> list[matrix.CellResult]:
    return list(run_cells(cells(four(*(names or NAMES)), seeds, folder), carry_out, Console(quiet=True)))


def four(*names: str, objectives: tuple[str, ...] = OBJECTIVES) -> list[Scenario]:
    """Return worlds of four workers at one learning rate."""
    return [scenario(name, 4, 0.1).overridden(target=None, objectives=objectives) for name in names]


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["k", *map(str, arguments)])


CHOSEN = [
    *(part for name in NAMES for part in ("--scenario", name)),
    *(part for name in OBJECTIVES for part in ("--objective", name)),
    *("--workers", "4", "--rate", "0.1", "--seeds", "2"),
]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", WORLDS)
def test_every_world_is_a_run(name: str, workers: int, tmp_path: Path) -> None:
    (cell,) = cells([scenario(name, workers, 0.35)], 1, tmp_path)
    plan = cell.plan()
    assert plan.shared == cell.config
    assert (plan.shared.job.workers, plan.shared.model.learning_rate) == (workers, 0.35)
    assert make_plan(cell.source).shared == cell.config, "the source file of a cell must give its configuration"
    assert len(set(plan.shared.run.trials)) == len(plan.shared.run.trials) >= 8
    if WORLDS[name].kind == "stationary":
        assert all(entry.from_iteration == 1 for entry in plan.shared.straggler)
        assert not plan.shared.shard
        assert not plan.shared.run.shift_every


@pytest.mark.slow
def test_finished_runs_are_not_repeated(folder: Path) -> None:
    first, again = Faked(), Faked()
    before = run(folder, first)
    assert first.seen == [(SHIFTING, 1, True), (ONE_SLOW, 1, False), (SHIFTING, 2, False), (ONE_SLOW, 2, False)]
    after = run(folder, again, seeds=3)
    assert again.seen == [(SHIFTING, 3, True), (ONE_SLOW, 3, False)]
    assert [result.trials for result in after[:4]] == [result.trials for result in before]
    assert all(len(result.trials) == 3 for result in after)


def test_interrupted_run_is_repeated(folder: Path) -> None:
    def interrupt(plan: RunPlan) -> None:
        if plan.shared.run.seed == 2:
            raise InterruptedRun("stopped by SIGINT")

    with pytest.raises(InterruptedRun):
        run(folder, Faked(interrupt), "one-slow")
    assert (folder / ONE_SLOW / "seed-2" / "run.json").exists()
    again = Faked()
    assert all(result.trials for result in run(folder, again, "one-slow"))
    assert again.seen == [(ONE_SLOW, 2, True)]


@pytest.mark.slow
def test_failed_run_does_not_stop_the_others(folder: Path) -> None:
    def fail(plan: RunPlan) -> None:
        if plan.shared.run.seed == 1:
            raise RunError("worker-3 ended with exit code 1")

    first, second = run(folder, Faked(fail), "one-slow")
    assert (first.error, first.trials) == ("FAILED: worker-3 ended with exit code 1", ())
    assert len(second.trials) == 3
    assert conclude("experiment k", folder, [first, second], find, Console(quiet=True), as_json=False) == 1
    document = json.loads((folder / "experiment.json").read_text())
    assert document["failures"] == [f"{ONE_SLOW}, seed 1: FAILED: worker-3 ended with exit code 1"]


def test_results_of_another_configuration_are_not_used(folder: Path) -> None:
    run(folder, Faked(), "one-slow", seeds=1)
    other = cells(four("one-slow", objectives=("throughput",)), 1, folder)
    with pytest.raises(ConfigError, match="results of another configuration: choose another --out"):
        list(run_cells(other, Faked(), Console(quiet=True)))


def test_folder_that_is_no_run_is_left_alone(folder: Path) -> None:
    mine = folder / ONE_SLOW / "seed-1"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="is no run's folder"):
        run(folder, Faked(), "one-slow")
    assert (mine / "thesis.tex").exists()


@pytest.mark.slow
def test_report_only_reports_the_existing_results(folder: Path) -> None:
    run(folder, Faked())
    result = invoke("--out", folder, *CHOSEN, "--report-only", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"]
    one_slow = document["scenarios"][1]
    assert (one_slow["world"], one_slow["kind"], one_slow["workers"], one_slow["rate"]) == (
        "one-slow",
        "stationary",
        4,
        0.1,
    )
    rows = {row["objective"]: row for row in one_slow["rows"]}
    assert rows["throughput"]["trainings"] == rows["throughput"]["reached"] == 2
    assert rows["throughput"]["predicted_s"]["median"] == pytest.approx(0.016)
    assert one_slow["best"] == "merge:2"
    assert rows["merge:2"]["against_best"]["mean"] == pytest.approx(1.0)
    assert rows["all"]["against_best"]["mean"] > 1.5
    trials = pd.read_csv(folder / "results.csv")
    assert len(trials) == len(NAMES) * len(OBJECTIVES) * 2
    assert set(trials["world"]) == set(NAMES)
    text = (folder / "report.html").read_text()
    assert text.count("<svg") == 3, "the page has a figure of means, and one of times for each scenario"
    for part in text.split("<svg")[1:]:
        ET.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
    assert document["claims"]
    assert all(claim["numbers"] in text for claim in document["claims"])


@pytest.mark.slow
def test_report_only_uses_the_options_of_the_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.experiments.conduct.execute", Faked())
    monkeypatch.setattr("kofn.experiments.conduct.check_machine", lambda _: None)
    monkeypatch.setattr("kofn.experiments.conduct.running", lambda: None)
    made = invoke("--out", folder, *CHOSEN, "--seeds", "1")
    assert made.exit_code == 0, made.output
    again = invoke("--report-only", "--out", folder, "--json")
    assert (again.exit_code, len(json.loads(again.stdout)["scenarios"])) == (0, len(NAMES)), again.output
    more = invoke("--report-only", "--out", folder, "--seeds", "2")
    assert more.exit_code == 1 and "seed 2: not run yet" in more.output


def test_report_only_names_what_is_missing(folder: Path) -> None:
    run(folder, Faked(), "one-slow", seeds=1)
    result = invoke("--out", folder, *CHOSEN, "--report-only")
    assert result.exit_code == 1
    assert f"{ONE_SLOW}, seed 2: not run yet" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "nonsense"], "--scenario must be among equal, one-slow,"),
        (["--objective", "async:5"], "K <= workers = 4, got 'async:5'"),
        (["--objective", "best"], "with 1 <= K <= workers"),
        (["--set", "job.words=99"], "scenario one-slow-4w-0.02: "),
        (["--report-only"], "--report-only needs --out with the folder of an experiment, not none"),
        (["--report-only", "--out", "nowhere"], "not nowhere"),
        (["--seeds", "0"], "0 is not in the range x>=1"),
        (["--workers", "3"], "3 is not in the range 4<=x<=64"),
        (["--rate", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


SHORT = ["--set", "run.target=0.8", "--workers", "4", "--rate", "0.35", "--seeds", "1"]


@pytest.mark.root
@pytest.mark.long
def test_experiment_runs_for_real_and_continues(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--scenario", "one-slow", "--objective", "async:3", "--objective", "progress", *SHORT]
    texts = []
    for _ in range(2):
        result = subprocess.run(
            [
                *OWN_NETWORK,
                sys.executable,
                "-c",
                "from kofn.cli.start import main; main()",
                "experiment",
                "k",
                *arguments,
                "--out",
                str(out),
                "--json",
            ],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KOFN_STATE_DIR": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        texts.append(result)
    first, again = texts
    assert "[1/1] one-slow-4w-0.35, seed 1: 2 trainings" in first.stderr
    assert "[1/1] one-slow-4w-0.35, seed 1: finished before" in again.stderr
    assert first.stdout == again.stdout
    (found,) = json.loads(first.stdout)["scenarios"]
    assert [(row["objective"], row["reached"]) for row in found["rows"]] == [("async:3", 1), ("progress", 1)]
    assert found["rows"][0]["predicted_s"]["median"] > 0.012
    source = out / "one-slow-4w-0.35" / "seed-1.toml"
    assert source.read_text() == (source.with_suffix("") / "effective.toml").read_text()
    assert (out / "report.html").exists()


SIMULATED = ["k", "--simulate", "--scenario", "equal", "--workers", "16", "--rate", "0.02"]
SHARDED = ["zero", "--convergence", "--task", "digits", "--steps", "100000"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "code"),
    [
        (SIMULATED, "SIGINT", 130),
        pytest.param(SIMULATED, "SIGKILL", -9, marks=pytest.mark.long),
        pytest.param(SHARDED, "SIGINT", 130, marks=pytest.mark.long),
        pytest.param(SHARDED, "SIGTERM", 130, marks=pytest.mark.long),
    ],
)
def test_computing_processes_end_with_their_command(command: list[str], name: str, code: int, tmp_path: Path) -> None:
    """The command is interrupted, terminated or killed; no process continues."""
    argv = [sys.executable, "-c", "from kofn.cli.start import main; main()", "experiment", *command]
    with subprocess.Popen(
        [*argv, "--processes", "2", "--out", tmp_path / "out"],
        env=os.environ | {"KOFN_STATE_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as begun:
        until(lambda: sum(processor_s(pid) > 2 for pid in processes(tmp_path)) >= 2)
        begun.send_signal(signal.Signals[name])
        assert begun.wait(timeout=20) == code
    try:
        until(lambda: not processes(tmp_path), timeout_s=20)
    finally:
        for left in processes(tmp_path):
            os.kill(left, signal.SIGKILL)


def processor_s(pid: int) -> float:
    """Return a process's processor time; 0: it has ended."""
    with contextlib.suppress(OSError):
        numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc(5)
    return 0.0


@pytest.mark.slow
def test_virtual_time_with_two_processes_gives_the_same_results(folder: Path) -> None:
    """The matrix trains without a network and makes its claims. A second run gives the same digits."""
    chosen = ["--scenario", "one-slow", "--scenario", "racks", "--objective", "batch-sync:2", "--objective", "progress"]
    documents: list[Any] = []
    for out, number in ((folder, 2), (folder.with_name("again"), 1)):
        arguments = ["k", "--simulate", *chosen, *SHORT, "--out", str(out), "--processes", str(number), "--json"]
        if documents:
            out.mkdir()
            shutil.copy(folder / "costs-4w.json", out)
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        documents.append(json.loads(result.stdout)["scenarios"])
    assert documents[0] == documents[1]
    assert [found["world"] for found in documents[0]] == ["one-slow", "racks"]
    for found in documents[0]:
        assert {row["objective"]: row["reached"] for row in found["rows"]} == {"batch-sync:2": 1, "progress": 1}
        assert found["rows"][1]["ends_with"]
    one = folder / "racks-4w-0.35" / "seed-1"
    assert json.loads((one / "run.json").read_text())["driver"] == "simulated"
    assert not list(one.glob("*/worker-*")), "the workers' files are not kept"


@pytest.mark.parametrize("command_line", [["k"], ["codecs"]])
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.stragglers=gone:Late", "straggler 'gone:Late' cannot be loaded: ModuleNotFoundError"),
        ("model.trace=/nowhere.csv", "/nowhere.csv cannot be read as a trace"),
    ],
)
def test_plug_in_that_cannot_be_loaded_is_named_before_the_first_run(
    folder: Path, command_line: list[str], setting: str, words: str
) -> None:
    result = CliRunner().invoke(command, [*command_line, "--simulate", "--set", setting, "--out", str(folder)])
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert not folder.exists()
