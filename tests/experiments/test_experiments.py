"""An experiment in virtual time: table, claims, figures, continuation, repetition; rows without runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import kofn
from kofn.cli.main import main
from kofn.experiments import modes, reader
from kofn.experiments.cells import cells_of
from kofn.experiments.estimate import expected
from kofn.experiments.experiment_file import ExperimentFile
from kofn.run.errors import RunError
from kofn.run.plan import RunPlan
from kofn.sim import runner
from kofn.sim.costs import Costs
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import RunFolder
from tests.experiments.given import EXAMPLES
from tests.run.real_run import OWN_NETWORK, processes
from tests.waiting import until

FILE = """
[experiment]
name = "question"
question = "Is it worth to wait?"
seeds = 2
baseline = "all"

[base]
job = { workers = 4, words = 32 }
network = { link_mbps = 200.0 }
model = { hidden = [16], batch = 32, learning_rate = 0.5, compute_ms = 5.0 }
run = { target = 0.8, max_iterations = 60 }

[axes]
straggler = { slow = { straggler = [{ workers = "last 1", mean_ms = 40.0 }] }, none = { straggler = [] } }

[[contender]]
name = "all but one"
trial = "merge:n-1"
[[contender]]
name = "all"
trial = "all"

[[claim]]
text = "with a slow worker it is faster not to wait"
column = "mean_iteration_s"
faster = "all but one"
slower = "all"
where = { straggler = "slow" }
at_least = 1.5
[[claim]]
text = "it is always ten times faster"
column = "mean_iteration_s"
faster = "all but one"
slower = "all"
at_least = 10
[[claim]]
text = "an iteration takes less than a second"
column = "mean_iteration_s"
contender = "all"
at_most = 1

[[figure]]
y = "mean_iteration_s"
panels = "straggler"
x = "contender"
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], env={"KOFN_STATE_DIR": "/nowhere", "COLUMNS": "80"})


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiment") / "out"
    file = folder.with_name("question.toml")
    file.write_text(FILE)
    done = invoke("experiment", file, "--out", folder, "--processes", 1)
    assert done.exit_code == 0, done.output
    (folder / "shown.txt").write_text(done.output)
    return folder


@pytest.mark.slow
def test_frames_have_columns_for_axes_contender_and_seed(simulated: Path) -> None:
    found = kofn.read(simulated)
    assert isinstance(found, kofn.Experiment)
    assert list(found.summary.columns[:3]) == ["straggler", "contender", "seed"]
    assert len(found.summary) == 8
    rows = found.metrics
    assert list(rows.columns[:3]) == ["straggler", "contender", "seed"] and not rows.empty
    assert set(rows["seed"]) == {1, 2} and set(rows["straggler"]) == {"slow", "none"}
    iterations = found.summary.set_index(["straggler", "contender", "seed"])["iterations"]
    longest = rows.groupby(["straggler", "contender", "seed"])["iteration"].max()
    assert longest.to_dict() == iterations.to_dict()


@pytest.mark.slow
def test_ratio_is_paired_by_seed(simulated: Path) -> None:
    found = kofn.read(simulated)
    ratio = found.ratio("mean_iteration_s")
    rows = found.summary.pivot_table(index=["straggler", "seed"], columns="contender", values="mean_iteration_s")
    single = rows["all but one"] / rows["all"]
    (mean,) = ratio[(ratio["straggler"] == "slow") & (ratio["contender"] == "all but one")]["ratio"]
    assert mean == pytest.approx((single["slow", 1] * single["slow", 2]) ** 0.5)
    assert set(ratio[ratio["contender"] == "all"]["ratio"]) == {1.0}
    with pytest.raises(ConfigError, match=r"a column must be one of .*, got 'mean_iteration': did you mean"):
        found.ratio("mean_iteration")
    with pytest.raises(ConfigError, match="where: straggler must be one of slow, none, got 'fast'"):
        found.table(where={"straggler": "fast"})


@pytest.mark.slow
def test_claims_are_judged_and_the_page_begins_with_the_answer(simulated: Path) -> None:
    document = json.loads((simulated / "experiment.json").read_text())
    assert [claim["holds"] for claim in document["claims"]] == [True, False, True]
    assert (document["cells"], document["finished"], document["ok"]) == (8, 8, True)
    page = (simulated / "report.html").read_text()
    answer = document["answer"]
    assert answer.startswith(("all but one has the least time to target", "all has the least time to target"))
    assert page.index("Is it worth to wait?") < page.index(answer) < page.index("Claims")
    assert "yes  with a slow worker it is faster not to wait" in (simulated / "shown.txt").read_text()
    figure = (simulated / "figures" / "figure-1.pdf").read_bytes()
    assert figure.startswith(b"%PDF") and b"/FontFile2" in figure, "fonts are embedded as TrueType"
    assert len(pd.read_csv(simulated / "results.csv")) == 8


@pytest.mark.slow
def test_table_fits_eighty_columns(simulated: Path) -> None:
    done = invoke("report", simulated)
    assert done.exit_code == 0, done.output
    assert "mean iteration" in done.output


@pytest.mark.slow
def test_plot_returns_axes_with_intervals(simulated: Path) -> None:
    found = kofn.read(simulated)
    axes = found.plot("straggler", "mean_iteration_s")
    assert not isinstance(axes, list)
    assert axes.get_ylabel() == "mean iteration [s]"
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["all but one", "all"]
    assert axes.get_legend().get_title().get_text() == "contender"
    panels = found.plot("contender", "mean_iteration_s", panels="straggler", relative=True)
    assert isinstance(panels, list)
    highest = found.paired("mean_iteration_s")["ratio"].max()
    assert all(each.get_ylim()[1] >= highest for each in panels), "no panel cuts values off"
    assert [each.get_title() for each in panels] == [
        "straggler = slow",
        "straggler = none",
    ]


@pytest.mark.slow
def test_repetition_elsewhere_has_equal_numbers(simulated: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved artefact"
    shutil.copytree(simulated, moved)
    done = invoke("experiment", moved, "--out", tmp_path / "again", "--processes", 1)
    assert done.exit_code == 0, done.output
    assert "16 of 16 numbers agree with the original" in done.output
    assert "equal" in done.output
    part = invoke("experiment", moved, "--out", tmp_path / "part", "--only", "straggler=none", "--processes", 1)
    assert "8 of 8 numbers agree with the original" in part.output
    first, again = (pd.read_csv(folder / "results.csv") for folder in (simulated, tmp_path / "again"))
    pd.testing.assert_frame_equal(first, again)


@pytest.mark.slow
def test_unfinished_experiment_is_continued_without_repeating_a_cell(simulated: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(simulated, out)
    cells = sorted(out.glob("cells/*/seed-*/summary.json"))
    cells[3].unlink()
    times = {path: path.stat().st_mtime_ns for path in cells if path.exists()}
    done = invoke("experiment", out, "--processes", 1)
    assert done.exit_code == 0, done.output
    assert "8 cells, 7 of them finished before" in done.output
    assert {path: path.stat().st_mtime_ns for path in times} == times and cells[3].exists()
    pd.testing.assert_frame_equal(pd.read_csv(out / "results.csv"), pd.read_csv(simulated / "results.csv"))


@pytest.mark.slow
def test_claims_about_what_was_not_chosen_are_not_asked(simulated: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(simulated, out)
    file = simulated.with_name("question.toml")
    chosen = ("--only", "straggler=none", "--only", "contender=all but one")
    done = invoke("experiment", file, "--out", out, "--processes", 1, *chosen)
    assert done.exit_code == 0, done.output
    assert "2 cells, 2 of them finished before" in done.output
    assert done.output.count("not asked") == 3
    again = invoke("experiment", file, "--out", out, "--processes", 1)
    assert "8 cells, 8 of them finished before" in again.output


@pytest.mark.slow
def test_another_experiment_does_not_mix_with_the_results(simulated: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(simulated, out)
    (tmp_path / "other.toml").write_text(FILE.replace("compute_ms = 5.0", "compute_ms = 6.0"))
    done = invoke("experiment", tmp_path / "other.toml", "--out", out)
    assert done.exit_code == 2
    assert "holds the results of another configuration: choose another --out" in done.output
    assert (out / "experiment.toml").read_bytes() == (simulated / "experiment.toml").read_bytes(), "as it was before"
    assert invoke("report", out).exit_code == 0
    (tmp_path / "third.toml").write_text(FILE.replace('name = "question"', 'name = "third"'))
    for option in ([], ["--dry-run"]):
        refused = invoke("experiment", tmp_path / "third.toml", "--out", out, *option)
        assert refused.exit_code == 2
        assert f"{out} is the folder of the experiment 'question', got 'third': choose another --out" in refused.output


@pytest.mark.slow
def test_export_writes_every_frame_of_all_runs(simulated: Path, tmp_path: Path) -> None:
    done = invoke("export", simulated, "--to", "csv", "--out", tmp_path / "csv")
    assert done.exit_code == 0, done.output
    metrics = pd.read_csv(tmp_path / "csv" / "metrics.csv")
    assert set(metrics["contender"]) == {"all", "all but one"} and len(metrics) > 8


def test_figure_hides_no_axis(tmp_path: Path) -> None:
    more = '[axes]\n"model.momentum" = [0, 0.9]\n"compress.codec" = ["int8", "int32"]'
    (tmp_path / "question.toml").write_text(FILE.replace("[axes]", more).replace('panels = "straggler"', ""))
    done = invoke("experiment", tmp_path / "question.toml", "--dry-run")
    assert done.exit_code == 2
    assert "figure[0]: model.momentum, compress.codec, straggler must be x, lines, panels or one value" in done.output


def test_dry_run_names_cells_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "question.toml").write_text(FILE)
    done = invoke("experiment", tmp_path / "question.toml", "--out", tmp_path / "out", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert len(document["cells"]) == 8 and document["estimate_s"] > 0
    assert not (tmp_path / "out").exists()


def test_estimate_is_of_the_durations_size(tmp_path: Path) -> None:
    """A training of this experiment has up to 1,000 iterations of ten milliseconds, and reaches its target earlier."""
    file = ExperimentFile.load(EXAMPLES / "what-is-k-worth.toml")
    cells = cells_of(file, tmp_path / "out")
    estimate = expected(file, cells, at_a_time=1)
    assert estimate is not None and 2 < estimate.early_s < estimate.most_s < 20 * 50
    shown = invoke("experiment", EXAMPLES / "what-is-k-worth.toml", "--out", tmp_path / "out", "--dry-run").output
    assert " if every training reaches its target after 100 iterations" in shown


MODULE = """
def row(cell):
    if cell.config.model.learning_rate == 0.3 and cell.seed == 2:
        raise ValueError("diverged")
    rate = cell.point.own.get("factor", 1) * cell.config.model.learning_rate
    return {"loss": rate * cell.seed, "fault": "wrong rate" if rate == 0.8 else None}


def columns(trial):
    return {"twice": 2 * trial.summary.iterations}
"""


@pytest.mark.slow
def test_chosen_values_are_run_and_stored_alone(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(MODULE)
    (tmp_path / "rows.toml").write_text(ROWS)
    chosen = ("--only", "model.learning_rate=0.1,0.2", "--seeds", 1, "--out", tmp_path / "out", "--processes", 1)
    done = invoke("experiment", tmp_path / "rows.toml", *chosen)
    assert done.exit_code == 0, done.output
    assert list(reader.read(tmp_path / "out").summary["model.learning_rate"]) == [0.1, 0.2]


ROWS = """
[experiment]
name = "rows"
mode = "own_rows:row"
seeds = 2
[axes]
"model.learning_rate" = [0.1, 0.2, 0.3]
[[contender]]
name = "all"
trial = "all"
"""


def test_failed_cell_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(MODULE)
    (tmp_path / "rows.toml").write_text(ROWS)
    out = tmp_path / "out"
    done = invoke("experiment", tmp_path / "rows.toml", "--out", out, "--processes", 1)
    assert done.exit_code == 1
    assert "model.learning_rate = 0.3, all, seed 2: FAILED: ValueError: diverged" in done.output
    found = reader.read(out)
    assert [row["loss"] for row in found.summary.to_dict("records")] == [0.1, 0.2, 0.3, 0.2, 0.4]
    with pytest.raises(ConfigError, match=r"has no metrics: experiment.mode = 'own_rows:row' keeps only summary"):
        _ = found.metrics
    lines = (out / "rows.jsonl").read_text().splitlines()
    (out / "inputs" / "modules" / "own_rows.py").write_text(MODULE.replace("== 0.3", "== 9"))
    (out / "rows.jsonl").write_text("\n".join(lines) + '\n{"cell": "cut')
    again = invoke("experiment", out, "--processes", 1)
    assert "6 cells, 5 of them finished before" in again.output
    assert len((out / "rows.jsonl").read_text().splitlines()) == len(lines) + 1, "only the failed cell is called again"


def test_values_for_functions_are_no_configuration_and_a_fault_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(MODULE)
    (tmp_path / "rows.toml").write_text(
        ROWS.replace("[axes]", '[axes]\n"own.factor" = [2, 4]').replace("seeds = 2", "")
    )
    done = invoke("experiment", tmp_path / "rows.toml", "--seeds", 1, "--out", tmp_path / "out", "--processes", 1)
    assert done.exit_code == 1 and "own.factor = 4, model.learning_rate = 0.2, all, seed 1: wrong rate" in done.output
    assert set(reader.read(tmp_path / "out").summary["loss"]) == {0.2, 0.4, 0.6, 0.8, 1.2}


def test_chosen_value_may_contain_a_comma(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(MODULE)
    other = '[[contender]]\nname = "one, always"\ntrial = "fixed:1"\n'
    (tmp_path / "rows.toml").write_text(ROWS + other)
    chosen = ["--only", "model.learning_rate=0.1,0.2", "--only", "contender=one, always"]
    done = invoke("experiment", tmp_path / "rows.toml", *chosen, "--out", tmp_path / "out", "--processes", 1)
    assert done.exit_code == 0, done.output
    found = reader.read(tmp_path / "out").summary[["model.learning_rate", "contender", "seed"]].to_numpy().tolist()
    assert found == [[rate, "one, always", seed] for seed in (1, 2) for rate in (0.1, 0.2)]


def test_only_used_plugins_are_copied_and_no_links_to_the_outside(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "copied_rows.py").write_text(f"import copied_sibling\n{MODULE}")
    (given / "copied_sibling.py").write_text("")
    (given / "not_used.py").write_text("")
    (tmp_path / "secret.json").write_text("password")
    (given / "copied_rows.json").symlink_to(tmp_path / "secret.json")
    (given / "copied_rows.p4").write_text("// a program")
    (given / "rows.toml").write_text(ROWS.replace("[0.1, 0.2, 0.3]", "[0.1]").replace("own_rows", "copied_rows"))
    out = tmp_path / "out"
    done = invoke("experiment", given / "rows.toml", "--out", out, "--processes", 1)
    assert done.exit_code == 0, done.output
    copied = sorted(path.name for path in (out / "inputs" / "modules").iterdir())
    assert copied == ["copied_rows.p4", "copied_rows.py", "copied_sibling.py"]
    assert str(tmp_path) not in (out / "experiment.toml").read_text(), "stored paths are relative"
    (given / "copied_rows.py").write_text(MODULE.replace("2 *", "3 *"))
    changed = invoke("experiment", given / "rows.toml", "--out", out, "--processes", 1)
    assert changed.exit_code == 2 and "is from an earlier copied_rows.py" in changed.output


def test_plugin_that_cannot_be_loaded_is_named_before_the_first_cell(tmp_path: Path) -> None:
    (tmp_path / "question.toml").write_text(FILE)
    settings = {
        "model.stragglers=gone:Late": "kofn experiment: [base]: straggler 'gone:Late' cannot be loaded: ModuleNotFound",
        "model.trace=/nowhere.csv": "kofn experiment: [base]: /nowhere.csv cannot be read as a trace",
    }
    for setting, words in settings.items():
        done = invoke("experiment", tmp_path / "question.toml", "--set", setting, "--out", tmp_path / "out")
        assert done.exit_code == 2, done.output
        assert words in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["run", "simulate", "scale"])
def test_contender_that_is_no_policy_is_refused_before_the_first_cell(tmp_path: Path, mode: str) -> None:
    (tmp_path / "no_policy.py").write_text("class Baseless:\n    def choose(self, forecast):\n        return 1\n")
    text = FILE.replace('trial = "merge:n-1"', 'trial = "no_policy:Baseless"')
    (tmp_path / "question.toml").write_text(text[: text.index("[[claim]]")])
    done = invoke("experiment", tmp_path / "question.toml", "--mode", mode, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert "slow, all but one: objective 'no_policy:Baseless' must be a class derived from" in done.output
    assert not (tmp_path / "out").exists()


def test_scale_has_no_server(tmp_path: Path) -> None:
    text = FILE + '[[contender]]\nname = "server"\ntrial = "all"\nset = { "job.collective" = "server" }\n'
    (tmp_path / "question.toml").write_text(text)
    done = invoke("experiment", tmp_path / "question.toml", "--mode", "scale", "--dry-run")
    assert done.exit_code == 2
    assert "slow, server: job.collective must be 'switch' with --scale, got 'server'" in done.output


@pytest.mark.parametrize("finished", [False, True])
def test_machine_is_checked_before_the_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    def check(target: str) -> None:
        raise RunError(f"no root for {target}")

    monkeypatch.setattr(modes, "check_machine", check)
    (tmp_path / "question.toml").write_text(FILE)
    file = ExperimentFile.load(tmp_path / "question.toml", mode="run")
    cells = cells_of(file, tmp_path / "out")
    if finished:
        for cell in cells:
            cell.folder.mkdir(parents=True)
            (cell.folder / "summary.json").touch()
        modes.check_here(file, cells)
        return
    done = invoke("experiment", tmp_path / "question.toml", "--mode", "run", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "no root for embedded" in done.output and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_failed_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "question.toml").write_text(FILE.replace("seeds = 2", "seeds = 1\nlean = true"))
    real = runner.execute

    def fails(plan: RunPlan, console: Console, known: Callable[[], Costs]) -> RunFolder:
        if "slow-all" in str(plan.folder) and "but" not in str(plan.folder):
            raise RunError("the switch died")
        return real(plan, console, known)

    monkeypatch.setattr(runner, "execute", fails)
    arguments = ("experiment", tmp_path / "question.toml", "--out", tmp_path / "out", "--processes", 1)
    done = invoke(*arguments)
    assert done.exit_code == 1
    assert "straggler = slow, all, seed 1: FAILED: the switch died" in done.output
    document = json.loads((tmp_path / "out" / "experiment.json").read_text())
    assert (document["cells"], document["finished"], document["ok"]) == (4, 3, False)
    assert [claim["holds"] for claim in document["claims"]] == [None, None, None]
    monkeypatch.setattr(runner, "execute", real)
    again = invoke(*arguments)
    assert again.exit_code == 0 and "4 cells, 3 of them finished before" in again.output
    assert not list(tmp_path.glob("out/cells/*/seed-1/*/worker-*")), "lean: the workers' files are not kept"


@pytest.mark.root
@pytest.mark.long
def test_experiment_runs_for_real_and_continues(tmp_path: Path) -> None:
    (tmp_path / "question.toml").write_text(FILE)
    only = ["--only", "straggler=slow", "--seeds", "1", "--mode", "run", "--out", str(tmp_path / "out"), "--json"]
    kofn_main = [sys.executable, "-c", "from kofn.cli.start import main; main()"]
    done = [
        subprocess.run(
            [*OWN_NETWORK, *kofn_main, "experiment", str(tmp_path / "question.toml"), *only],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KOFN_STATE_DIR": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        for _ in range(2)
    ]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    first, again = (json.loads(one.stdout) for one in done)
    assert first == again and first["claims"][0]["holds"] is True
    assert "2 cells, 2 of them finished before" in done[1].stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), pytest.param("SIGKILL", -9, marks=pytest.mark.long)])
def test_processes_end_with_their_command(name: str, code: int, tmp_path: Path) -> None:
    """The command is interrupted or killed; no process continues, and the same command goes on."""
    (tmp_path / "question.toml").write_text(FILE.replace("target = 0.8, max_iterations = 60", "max_iterations = 3000"))
    kofn_main = [sys.executable, "-c", "from kofn.cli.start import main; main()"]
    with subprocess.Popen(
        [*kofn_main, "experiment", tmp_path / "question.toml", "--processes", "2", "--out", tmp_path / "out"],
        env=os.environ | {"KOFN_STATE_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as begun:
        until(lambda: len(list(tmp_path.glob("out/cells/*/seed-1"))) >= 2)
        begun.send_signal(signal.Signals[name])
        assert begun.wait(timeout=20) == code
    try:
        until(lambda: not processes(tmp_path), timeout_s=20)
    finally:
        for left in processes(tmp_path):
            os.kill(left, signal.SIGKILL)


def test_missed_target_has_no_mean(tmp_path: Path) -> None:
    class Missed(kofn.Experiment):
        summary = pd.DataFrame(
            {
                "contender": ["a", "a", "b", "b"],
                "seed": [1, 2, 1, 2],
                "time_to_target_s": pd.array([1.0, None, 2.0, 3.0]),
            }
        )
        axes = ()
        baseline = "b"

        def __init__(self) -> None:
            pass

    found = Missed()
    found.summary["never_s"] = pd.array([None] * 4)
    assert found.table("never_s")["never_s"].isna().all(), "a column that no trial has is missing, not unknown"
    table = Missed().table("time_to_target_s").set_index("contender")
    assert pd.isna(table["time_to_target_s"]["a"]) and table["time_to_target_s_n"]["a"] == 1
    assert table["time_to_target_s"]["b"] == pytest.approx(6**0.5)
    ratio = Missed().ratio("time_to_target_s").set_index("contender")
    assert pd.isna(ratio["ratio"]["a"]) and ratio["ratio_n"]["a"] == 1
