"""A bad configuration: one line that names the field, exit code 2, and nothing is started or written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from run.config import Config
from run.runner import DEFAULT_CONFIG, command

STAR = {"hosts": {"h1": {}, "h2": {}}, "switches": {"s1": {}}, "links": []}

BAD = [
    ("[run]\nnane = 'x'", "Object contains unknown field `nane` - at `$.run`"),
    ("[runs]", "unknown field `runs`"),
    ("[run]\npasses = []", "run.passes is empty"),
    ("[run]\npasses = ['best']", "run.passes is 'best': 'round', 'all' or 'fixed:K' with 1 <= K <= workers = 4"),
    ("[run]\npasses = ['fixed:5']", "run.passes is 'fixed:5'"),
    ("[run]\npasses = ['fixed:0']", "run.passes is 'fixed:0'"),
    ("[run]\ntarget_accuracy = 1.5", "$.run.target_accuracy"),
    ("[run]\nmax_iterations = 0", "$.run.max_iterations"),
    ("[run]\nevent_ms = 0", "$.run.event_ms"),
    ("[run]\nseed = -1", "$.run.seed"),
    ("[run]\npass_deadline_s = 0", "$.run.pass_deadline_s"),
    ("[job]\nworkers = 0", "$.job.workers"),
    ("[job]\nworkers = 65", "$.job.workers"),
    ("[job]\nworkers = 'four'", "$.job.workers"),
    ("[job]\nid = 256", "$.job.id"),
    ("[job]\nwords = 33", "$.job.words"),
    ("[job]\nslots = 1000", "job.slots is 1000: a power of two"),
    ("[job]\nslots = 64\nwindow = 33", "job.window is 33: 1 to 32"),
    ("[job]\ncodec = 'fancy'", "$.job.codec"),
    ("[policy]\nobjective = 'fixed:x'", "policy.objective is 'fixed:x'"),
    ("[policy]\nmargin = -0.1", "$.policy.margin"),
    ("[model]\nmomentum = 1.0", "$.model.momentum"),
    ("[model]\nlearning_rate = 0", "$.model.learning_rate"),
    ("[model]\nhidden = [0]", "$.model.hidden"),
    ("[network]\ndriver = 'docker'", "$.network.driver"),
    ("[network]\ntarget = 'tofino'", "$.network.target"),
    ("[network]\np4runtime_port = 70000", "$.network.p4runtime_port"),
    ("[network]\nlink_mbps = -1", "$.network.link_mbps"),
    ("[network]\ntopology = 'absent.json'", "network.topology is"),
    ("[network]\ntopology = 'star.json'", "star.json has 2 hosts, job.workers is 4"),
    ("[network]\ntopology = 'list.json'", "no JSON object with 'hosts'"),
    ("[[straggler]]\nworkers = [4]\nmean_ms = 1", "straggler.workers has 4: 0 to 3"),
    ("[[straggler]]\nworkers = [0]", "missing required field `mean_ms`"),
    ("[[straggler]]\nworkers = [0]\nmean_ms = -1", "$.straggler[0].mean_ms"),
    ("[run\n", "not TOML"),
]


def invoke(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [str(path), "--out", str(path.parent / "out"), *arguments])


def assert_refused(result: Result, words: str, out: Path) -> None:
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert len(result.output.splitlines()) == 1
    assert not out.exists()


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A configuration is judged on every machine, whoever runs it and whatever listens there."""
    monkeypatch.setattr("run.runner.check_machine", lambda config, target: None)
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.parametrize(("text", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_configuration(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "star.json").write_text(json.dumps(STAR))
    (tmp_path / "list.json").write_text("[]")
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert_refused(invoke(path), words, tmp_path / "out")


def test_missing_file(tmp_path: Path) -> None:
    assert_refused(invoke(tmp_path / "absent.toml"), "absent.toml: No such file", tmp_path / "out")


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert_refused(invoke(tmp_path / "folder"), "Is a directory", tmp_path / "out")


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert_refused(invoke(path), "not TOML", tmp_path / "out")


def test_bad_pass_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("")
    assert_refused(invoke(path, "--pass", "fixed:9"), "--pass is 'fixed:9'", tmp_path / "out")


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    result = invoke(path)
    assert result.exit_code == 1
    assert "is not empty" in result.output
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["mine"]


def test_the_default_experiment_is_valid() -> None:
    config = Config.load(DEFAULT_CONFIG)
    assert config.run.passes == ("round", "all")
    assert {rank for entry in config.straggler for rank in entry.workers} == set(range(config.job.workers))


def test_help_has_examples() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert "kofn run --pass round --pass fixed:2" in text
    assert "Exit codes" in text
