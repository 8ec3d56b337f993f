"""An experiment file is checked as a whole before anything starts, and gives the cells that it describes."""

import re
from pathlib import Path

import pytest

from kofn.experiments.cells import cells_of
from kofn.experiments.experiment_file import ExperimentFile, objective_of
from kofn.experiments.modes import scale_row
from kofn.experiments.result_columns import scaled_trial
from kofn_common.config.errors import ConfigError

FILE = """
[experiment]
name = "question"
seeds = 2
baseline = "everyone"

[base.job]
workers = 4
[base.run]
max_iterations = 20

[axes]
"job.workers" = [4, 8]
straggler = { two = { straggler = [{ workers = "last 2", mean_ms = 40.0 }] }, none = { straggler = [] } }

[[contender]]
name = "all but one"
trial = "fixed:n-1"
[[contender]]
name = "everyone"
trial = "all"
set = { "compress.codec" = "int8" }
"""


def written(folder: Path, text: str = FILE) -> Path:
    path = folder / "question.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    path = written(folder, text)
    with pytest.raises(ConfigError) as error:
        ExperimentFile.load(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_cells_are_every_combination_with_every_seed(tmp_path: Path) -> None:
    file = ExperimentFile.load(written(tmp_path))
    cells = cells_of(file, tmp_path / "out")
    assert len(cells) == 2 * 2 * 2 * 2 and len({cell.folder for cell in cells}) == 16
    (cell,) = [
        cell
        for cell in cells
        if cell.labels == {"job.workers": 8, "straggler": "two", "contender": "all but one", "seed": 2}
    ]
    config = cell.config
    assert (config.job.workers, config.run.seed, config.run.trials) == (8, 2, ("fixed:7",))
    assert [entry.workers for entry in config.straggler] == [(6, 7)], (
        "last 2 of the axis' 8 workers, not of the base's 4"
    )
    assert config.compress.codec == "int32" and cells[1].config.compress.codec == "int8"


def test_choices_leave_cells_out(tmp_path: Path) -> None:
    file = ExperimentFile.load(written(tmp_path), seeds=1)
    chosen = file.only({"job.workers": ["8"], "contender": ["everyone"]})
    assert [cell.labels["straggler"] for cell in cells_of(chosen, tmp_path)] == ["two", "none"]
    with pytest.raises(ConfigError, match=r"--only job.workers must be one of 4, 8, got '9'"):
        file.only({"job.workers": ["9"]})


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("seeds = 2", "seed = 2", "a key of experiment must be one of name, .*, got 'seed': did you mean 'seeds'?"),
        ('"job.workers"', '"job.worker"', "must be one of .*, got 'worker': did you mean 'workers'?"),
        ('"compress.codec" = "int8"', '"compres.codec" = "int8"', "got 'compres': did you mean 'compress'?"),
        ('trial = "all"', 'trial = "al"', "run.trials must be .* got 'al'"),
        ('baseline = "everyone"', 'baseline = "everyon"', "experiment.baseline must be .*: did you mean 'everyone'?"),
        ("max_iterations = 20", 'trials = ["all"]', r"\[base\]: run.trials must not be given here"),
        ("[4, 8]", "[4, 800]", "^job.workers = 800, straggler = two, all but one: job.workers must be 1 to"),
        ("workers = 4", "workers = 4\nwords = 0", r"^\[base\]: job.words must be 1 to 32, got 0"),
        ('"job.workers" =', "job.workers =", r'must be quoted, "job.workers" = \[4, 8\]'),
        ('"job.workers" = [4, 8]', '"straggler.mean_ms" = [4, 8]', r"changes, straggler = { a = { straggler = \["),
        ('"job.workers" = [4, 8]', "shock.mean_ms = [4, 8]", r"named changes, shock = { a = { shock = \["),
        ("seeds = 2", 'seeds = 2\nshow = ["time_to_targt_s"]', "experiment.show .*: did you mean 'time_to_target_s'?"),
        ("[4, 8]", "[]", "axes.job.workers must have at least one value, got none"),
        ('{ straggler = [] }', '"missing.toml"', "missing.toml: No such file or directory"),
        ("seeds = 2", 'seeds = 2\nmode = "simulat"', "experiment.mode must be run, simulate, scale or module:function"),
        ("seeds = 2", 'seeds = 2\nown_columns = "nowhere:columns"', "function 'nowhere:columns' cannot be loaded"),
        ("[[contender]]\nname = \"everyone\"", "[[contender]]\nname = \"all but one\"", "contender.name must differ"),
    ],
)  # fmt: skip
def test_wrong_file_is_refused_with_what_was_meant(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in FILE
    message = refusal(tmp_path, FILE.replace(old, new))
    assert re.search(reason.replace("?", r"\?"), message), message


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ('faster = "everyon"\nslower = "all but one"\nat_least = 2', "claim[0].faster must be one of"),
        ('faster = "everyone"\nslower = "all but one"', "claim[0].at_least must be the least ratio"),
        ('faster = "everyone"\nat_least = 2', "claim[0] must have faster and slower, or contender"),
        ('contender = "everyone"', "claim[0] must have at_least or at_most"),
        ('faster = "everyone"\nslower = "all but one"\nat_least = 2\nof = "everyone"', "claim[0].of needs claim[0]"),
        ('contender = "everyone"\nat_most = 2\nwhere = { workers = 4 }', "claim[0].where must be one of contender"),
        ('contender = "everyone"\nat_most = 2\nwhere = { "job.workers" = 5 }', "claim[0].where.job.workers must be"),
    ],
)  # fmt: skip
def test_claim_about_nothing_is_refused(tmp_path: Path, claim: str, reason: str) -> None:
    assert reason in refusal(tmp_path, f'{FILE}\n[[claim]]\ntext = "it is so"\ncolumn = "duration_s"\n{claim}\n')


COLUMNS = """
[[claim]]
text = "it is so"
column = "iterations"
contender = "everyone"
at_most = 1
[[table]]
columns = ["mean_iteration_s", "iterations"]
[[figure]]
y = "mean_iteration_s"
panels = "straggler"
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('column = "iterations"', 'column = "iteration"', "claim[0].column must be one of"),
        ('"mean_iteration_s", "iterations"', '"mean_iteration_s", "iteration"', "table[0].columns must be one of"),
        ('y = "mean_iteration_s"', 'y = "mean_iteration"', "figure[0].y must be one of"),
        ('y = "mean_iteration_s"', 'y = "identity_error"', "figure[0].y must be one of"),
    ],
)
@pytest.mark.parametrize("mode", ["run", "simulate", "scale"])
def test_unknown_column_is_refused(tmp_path: Path, mode: str, old: str, new: str, reason: str) -> None:
    text = FILE.replace("seeds = 2", f'seeds = 2\nmode = "{mode}"')
    ExperimentFile.load(written(tmp_path, text + COLUMNS))
    message = refusal(tmp_path, text + COLUMNS.replace(old, new))
    assert message.startswith(reason)
    assert "identity" in new or "did you mean 'iterations'?" in message or "did you mean 'mean_iteration_s'?" in message


def test_functions_of_the_file_may_add_columns(tmp_path: Path) -> None:
    (tmp_path / "own_columns_here.py").write_text("def more(trial): return {}\n")
    text = FILE.replace("seeds = 2", 'seeds = 2\nown_columns = "own_columns_here:more"')
    ExperimentFile.load(written(tmp_path, text + COLUMNS.replace('"iterations"', '"own"')))


def test_columns_of_a_mode_are_those_of_its_rows(tmp_path: Path) -> None:
    file = ExperimentFile.load(written(tmp_path), mode="scale")
    row = scale_row(cells_of(file, tmp_path)[0])
    numbers = {name for name, value in row.items() if isinstance(value, int | float)}
    assert numbers <= {*scaled_trial().numbers} <= {*row}


def test_base_and_overlays_have_paths_of_their_own_folders(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "job.toml").write_text('[model]\ntrace = "times.csv"\n')
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / "other.toml").write_text('[model]\ntrace = "times.csv"\n')
    text = FILE[FILE.index("[axes]") :]
    head = '[experiment]\nname = "question"\nbase = "base/job.toml"\n'
    text = text.replace("{ straggler = [] }", '"overlays/other.toml"').replace('"job.workers" = [4, 8]', "")
    file = ExperimentFile.load(written(tmp_path, head + text))
    traces = {str(point.axes["straggler"]): point.config().model.trace for point in file.points()}
    assert traces == {
        "two": str(tmp_path / "base" / "times.csv"),
        "none": str(tmp_path / "overlays" / "times.csv"),
    }


def test_names_of_digits_are_numbers_along_an_axis(tmp_path: Path) -> None:
    text = FILE.replace('"job.workers" = [4, 8]', 'size = { 4 = { "job.workers" = 4 }, 16 = { "job.workers" = 16 } }')
    file = ExperimentFile.load(written(tmp_path, text))
    assert {point.axes["size"] for point in file.points()} == {4, 16}


def test_k_is_relative_to_the_number_of_workers() -> None:
    texts = ("fixed:n", "fixed:n-1", "merge:n/2", "async:3n/4", "fixed:n/4-9", "fixed:2", "all", "bandit:Bandit")
    found = [objective_of(text, 8) for text in texts]
    assert found == ["fixed:8", "fixed:7", "merge:4", "async:6", "fixed:1", "fixed:2", "all", "bandit:Bandit"]


EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "experiments").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_an_experiment_or_the_base_of_one(path: Path, tmp_path: Path) -> None:
    if "[experiment]" in path.read_text():
        assert cells_of(ExperimentFile.load(path), tmp_path)
    else:
        assert any(path.name in other.read_text() for other in EXAMPLES if other != path)


def test_setting_changes_the_base_and_no_axis(tmp_path: Path) -> None:
    path = written(tmp_path)
    file = ExperimentFile.load(path, ["model.learning_rate=0.5"])
    assert {point.config().model.learning_rate for point in file.points()} == {0.5}
    with pytest.raises(ConfigError, match=r"--set job.workers must not name an axis: --only job.workers=VALUE"):
        ExperimentFile.load(path, ["job.workers=2"])


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("compress.codec=int4", "--set compress.codec must not name a key that the contender 'everyone' sets"),
        ("network.link_mbps=5", "--set network.link_mbps must not name a key that the axis 'link' sets"),
        ("run.seeds=9", "--set run.seeds must not be given, because experiment.seeds has the seeds"),
    ],
)
def test_setting_that_a_cell_overrides_is_refused(tmp_path: Path, setting: str, reason: str) -> None:
    link = "[axes]\nlink = { slow = { network = { link_mbps = 20 } }, fast = {} }"
    path = written(tmp_path, FILE.replace("[axes]", link))
    with pytest.raises(ConfigError, match=reason):
        ExperimentFile.load(path, [setting])
