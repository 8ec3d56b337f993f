"""An invalid configuration gives one line that names the field, exit code 2, and nothing is started or written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kofn.run.errors import RunError
from kofn.run.plan import DEFAULT_CONFIG, make_plan
from kofn.run.runner import command
from kofn.run.state import hold
from kofn_common.config.compress import CompressSection
from kofn_common.config.dump import to_toml
from kofn_common.config.network import NetworkSection
from kofn_common.config.objectives import DEFAULT, OBJECTIVES
from kofn_common.config.plugins import CODECS, COLLECTIVES
from kofn_common.config.schema import Config

STAR = {
    "hosts": {"h1": {"ip": "10.0.0.1/24"}, "h2": {"ip": "10.0.0.2/24"}},
    "switches": {"s1": {}},
    "links": [["h1", "s1-p1"], ["h2", "s1-p2"]],
}

SHARD = "[[shard]]\nworker = 2\nclasses = [3]"

SHARDS = "\n".join(f"[[shard]]\nworker = {rank}\nclasses = [{2 * rank}, {2 * rank + 1}]" for rank in range(3))

BAD = [
    ("[run]\nnane = 'x'", "a key of run must be one of name, seed, seeds, trials, target,"),
    (
        "[runs]",
        "a table or key must be one of run, network, job, compress, policy, model, torch, schedule, scale, layer,"
        " straggler, shock, shard, fault, link, cpu, event, got",
    ),
    (
        "[run]\ntrials = ['best']",
        f"run.trials must be {', '.join(OBJECTIVES.names)}, module:Name, or fixed:K, merge:K, async:K",
    ),
    ("[run]\ntrials = ['fixed:5']", "K <= workers = 4, got 'fixed:5'"),
    ("[run]\ntrials = ['fixed:\uff12']", "K <= workers = 4, got 'fixed:\uff12'"),
    (f"[run]\ntrials = ['fixed:{'2' * 5000}']", "K <= workers = 4, got 'fixed:2222"),
    ("[run]\ntrials = ['fixed:0']", "K <= workers = 4, got 'fixed:0'"),
    ("[run]\ntarget = 'high'", "run.target must be a number (-1e+09 to 1e+09), got 'high'"),
    ("[run]\nmax_iterations = 0", "run.max_iterations must be 1 to 1e+09, got 0"),
    ("[[straggler]]\nworkers = [0]\nmean_ms = 1\nevent_ms = 0", "straggler[0].event_ms must be 1e-09 to 1e+09, got 0"),
    ("[run]\nseed = -1", "run.seed must be 0 to 9.223372e+18, got -1"),
    ("[run]\ntrial_deadline_s = 0", "run.trial_deadline_s"),
    ("[model]\nreplay = 'mine'\n" + SHARD, "shard and model.replay must not both be given"),
    ("[model]\nworkload = 'script'", "model.workload must be 'script' with torch.script, and only then, got 'script'"),
    (
        "[model]\nworkload = 'digits'\n[torch]\nscript = 'train.py'",
        "model.workload must be 'script' with torch.script, and only then, got 'digits'",
    ),
    (
        "[torch]\nscript = 'train.py'\n[policy]\nlate_gradient = 'abort'",
        "policy.late_gradient must be one of merge, async, stash, drop with torch.script, got 'abort'",
    ),
    (
        "[torch]\nscript = 'train.py'\ngroup = 'worker'\n[job]\ncollective = 'gloo'",
        "torch.group must be 'job' with job.collective = 'gloo', got 'worker'",
    ),
    ("[torch]\nscript = 'train.py'\ngroup = 'all'", "torch.group must be 'job' or 'worker', got 'all'"),
    (
        "[torch]\nscript = 'train.py'\n[[cpu]]\nworkers = [0]\nshare = 0.5",
        "cpu and torch.script must not both be given",
    ),
    (
        "[job]\ncollective = 'mesh'",
        f"job.collective must be {', '.join(COLLECTIVES.names)} or module:Name, got 'mesh'",
    ),
    ("[run]\nevaluate_every = 0", "run.evaluate_every must be 1 to 1e+09, got 0"),
    ("[job]\nworkers = 0", "job.workers"),
    ("[job]\nworkers = 65", "job.workers must be 1 to 64 with job.racks = 1, got 65"),
    ("[job]\nworkers = 'four'", "job.workers must be a whole number (1 to 1000000), got 'four'"),
    ("[job]\nid = 256", "job.id"),
    ("[job]\nwords = 33", "job.words"),
    ("[job]\nslots = 1000", "job.slots must be a power of two from 2 to 4096, got 1000"),
    ("[job]\nslots = 64\nwindow = 33", "job.window must be a power of two from 1 to 32 (job.slots / 2), got 33"),
    ("[job]\nslots = 64\nwindow = 12", "job.window must be a power of two from 1 to 32 (job.slots / 2), got 12"),
    ("[job]\npackets = 'fancy'", "job.packets must be 'fast' or 'scapy', got 'fancy'"),
    ("[compress]\nratio = 0", "compress.ratio must be more than 0, at most 1, got 0"),
    ("[compress]\nratio = 1.01", "compress.ratio must be more than 0, at most 1, got 1.01"),
    ("[compress]\nratio = nan", "compress.ratio must be more than 0, at most 1, got nan"),
    (
        "[compress]\ncodec = 'int2'",
        f"compress.codec must be {', '.join(CODECS.names)} or module:Name, got 'int2'",
    ),
    ("[compress]\ncodec = 'mine:'", "or module:Name, got 'mine:'"),
    ("[compress]\nrounding = 'up'", "compress.rounding must be 'nearest' or 'stochastic', got 'up'"),
    ("[compress]\nmax_send_interval = 0", "compress.max_send_interval must be 1 to 1000, got 0"),
    ("[compress]\nmax_encoding_error = 0", "compress.max_encoding_error must be more than 0, at most 1, got 0"),
    ("[compress]\nrate_stability = 1", "compress.rate_stability must be more than 0, less than 1, got 1"),
    ("[compress]\npace_mbps = -1", "compress.pace_mbps must be 0 or 0.1 to 100000, got -1.0"),
    ("[compress]\npace_mbps = nan", "compress.pace_mbps must be 0 or 0.1 to 100000, got nan"),
    (
        "[compress]\nratio_control = 'on'",
        "compress.ratio_control must be 'deliverable' or 'literal' or 'off', got 'on'",
    ),
    (
        "[compress]\nratio_control = 'literal'",
        "compress.codec must be 'auto' with compress.ratio_control = 'literal', got 'int32'",
    ),
    (
        "[compress]\ncodec = 'int4'\n[job]\nworkers = 8",
        "compress.codec must be int32, int16, int8, onebit or auto, got 'int4': its 4-bit lanes leave no bits for the"
        " sum of 8 workers (job.workers)",
    ),
    ("[compress]\ncodec = 'auto'", "job.words must be a multiple of 8 with compress.codec = 'auto', got 4"),
    (
        "[compress]\ncodec = 'auto'\n[job]\nworkers = 8\nwords = 6",
        "job.words must be a multiple of 4 with compress.codec = 'auto', got 6",
    ),
    (
        "[compress]\ncodec = 'onebit'\n[job]\nwords = 5",
        "job.words must be 1 to 4 with compress.codec = 'onebit', got 5",
    ),
    (
        "[compress]\ncodec = 'onebit'\n[network]\ntarget = 'bmv2'\n[job]\nworkers = 3",
        "job.words must be 1 to 2 with compress.codec = 'onebit', network.target = 'bmv2' and 3 workers, got 4",
    ),
    (
        "[compress]\ncodec = 'onebit'\n[network]\ntarget = 'bmv2'\n[job]\nworkers = 8\nwords = 1",
        "job.workers must be up to 7 with compress.codec = 'onebit' and network.target = 'bmv2', got 8",
    ),
    ("[policy]\nobjective = 'fixed:x'", "K <= workers = 4, got 'fixed:x'"),
    ("[policy]\nmargin = -0.1", "policy.margin"),
    ("[model]\nmomentum = 1.0", "model.momentum must be 0 to less than 1, got 1.0"),
    ("[model]\nlearning_rate = 0", "model.learning_rate"),
    ("[model]\nhidden = [0]", "model.hidden[0] must be 1 to 65536, got 0"),
    ("[network]\ndriver = 'docker'", "network.driver must be 'auto' or 'mininet' or 'netns', got 'docker'"),
    ("[network]\ntarget = 'tofino'", "network.target"),
    ("[network]\np4runtime_port = 70000", "network.p4runtime_port"),
    ("[network]\nlink_mbps = -1", "network.link_mbps must be 0.1 to 100000, got -1"),
    ("[network]\ntopology = 'absent.json'", "absent.json: No such file or directory"),
    ("[network]\ntopology = 'star.json'", "star.json must have 4 hosts (job.workers is 4), one for each worker, got 2"),
    ("[network]\ntopology = 'list.json'", "list.json: the topology must be a table, got []"),
    ("[[straggler]]\nworkers = [4]\nmean_ms = 1", "straggler.workers must be 0 to 3 (job.workers - 1), got 4"),
    ("[[straggler]]\nworkers = [0]", "straggler[0].mean_ms must be a number (0 to 1e+09), got none"),
    ("[[straggler]]\nworkers = [0]\nmean_ms = -1", "straggler[0].mean_ms"),
    ("[[straggler]]\nworkers = [0]\nmean_ms = 1\nlaw = 'gauss'", "straggler[0].law must be 'bursty' or"),
    (
        "[[shock]]\nworkers = [4]\nblocking_ms = 1\nfor_ms = 1\nshare = 0.5",
        "shock.workers must be 0 to 3 (job.workers - 1), got 4",
    ),
    (
        "[[shock]]\nworkers = [0]\nblocking_ms = 1\nfor_ms = 1\nshare = 2",
        "shock[0].share must be 0 to 1, got 2",
    ),
    ("[model]\ndirichlet = 0", "model.dirichlet must be 1e-09 to 1e+09, got 0"),
    (f"[model]\ndirichlet = 1\n{SHARD}", "shard and model.dirichlet must not both be given"),
    ("[policy]\nlate_gradient = 'finish'", "policy.late_gradient must be 'abort' or 'async' or 'auto' or"),
    ("[[shard]]\nworker = 4\nclasses = [1]", "shard.worker must be 0 to 3 (job.workers - 1), got 4"),
    ("[[shard]]\nworker = 1\nclasses = [10]", "shard[0].classes[0] must be 0 to less than 10, got 10"),
    ("[[shard]]\nworker = 1\nclasses = [-1]", "shard[0].classes[0] must be 0 to less than 10, got -1"),
    ("[[shard]]\nworker = 1\nclasses = []", "shard.classes of worker 1 must have one or more classes, got none"),
    ("[[shard]]\nworker = 1", "shard[0].classes must be an array"),
    (f"[[shard]]\nworker = 1\nclasses = [3]\n{SHARD}", "shard.classes of worker 2 has 3, which worker 1 holds"),
    ("[[shard]]\nworker = 1\nclasses = [3, 3]", "shard.classes of worker 1 has 3, which worker 1 holds"),
    (f"{SHARD}\n[[shard]]\nworker = 2\nclasses = [4]", "a worker must have one shard, got two for shard.worker 2"),
    (f"[job]\nworkers = 3\n{SHARDS}", "shard leaves no worker for the classes [6, 7, 8, 9]"),
    (f"{SHARDS}\n[[shard]]\nworker = 3\nclasses = [6, 7, 8, 9]\n[job]\nworkers = 5", "no class for the workers [4]"),
    ("[[link]]\nworkers = [4]\nmbps = 5\nat_iteration = 1", "link.workers must be 0 to 3 (job.workers - 1), got 4"),
    ("[[link]]\nworkers = []\nmbps = 5\nat_iteration = 1", "link.workers must have one or more numbers, got none"),
    ("[[link]]\nworkers = [1]\nmbps = 0\nat_iteration = 1", "link[0].mbps must be 0.1 to 100000, got 0"),
    ("[[link]]\nworkers = [1]\nmbps = 5", "link[0].at_iteration must be a whole number (1 to 1e+09), got none"),
    ("[straggler]\nworkers = [0]", "straggler must be an array of tables, got a table"),
    ("job = 3", "job must be a table, got 3"),
    ("[job]\nworkers = true", "job.workers must be a whole number (1 to 1000000), got true"),
    (
        "[[straggler]]\nworkers = [0]\nmean_ms = 1\nevent_ms = inf",
        "straggler[0].event_ms must be 1e-09 to 1e+09, got inf",
    ),
    (
        "[[straggler]]\nworkers = [0]\nmean_ms = 1\nevent_ms = nan",
        "straggler[0].event_ms must be 1e-09 to 1e+09, got nan",
    ),
    ("[run]\nname = 'a/b'", "run.name must be up to 64 letters, digits, '.', '_' and '-', got 'a/b'"),
    ("[run]\nname = '..'", "run.name must be up to 64 letters, digits, '.', '_' and '-', got '..'"),
    ("[run]\ntrials = 'all'", "run.trials must be an array, each entry a string, got 'all'"),
    ("[network]\nlink_mbps = inf", "network.link_mbps must be 0.1 to 100000, got inf"),
    ("[network]\nlink_mbps = nan", "network.link_mbps must be 0.1 to 100000, got nan"),
    (
        "[network]\np4runtime_port = 50052",
        "network.controller_port must differ from network.p4runtime_port, got 50052 for both",
    ),
    ("[network]\nmanagement = 'x'", "network.management must be an IPv4 network, 172.30.255.0/24 for example, got 'x'"),
    (
        "[network]\nmanagement = '10.9.0.1/24'",
        "network.management must be an IPv4 network, 172.30.255.0/24 for example, got '10.9.0.1/24'",
    ),
    (
        "[network]\nmanagement = '127.1.0.0/24'",
        "network.management must be a network that hosts can have, got '127.1.0.0/24'",
    ),
    (
        "[network]\nmanagement = '10.0.0.0/16'",
        "network.management must not overlap a host's network, got 10.0.0.0/16 and h1's 10.0.0.1/24",
    ),
    (
        "[network]\nmanagement = '10.9.0.0/30'",
        "network.management must have 7 addresses or more for 4 hosts, got 10.9.0.0/30",
    ),
    ("[network]\ntopology = 'bad.json'", "bad.json: hosts.h1 must have a link to s1, got none"),
    ("[run\n", "not TOML"),
]


def invoke(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [str(path), "--out", str(path.parent / "out"), *arguments])


def assert_refused(result: Result, words: str, out: Path) -> None:
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.output.splitlines()) == 1
    assert not out.exists()


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make the machine irrelevant: a configuration is judged the same for every user and with any ports in use."""
    monkeypatch.setattr("kofn.run.runner.check_machine", lambda target: None)
    for name in ("check_ports", "check_management"):
        monkeypatch.setattr(f"kofn.run.runner.{name}", lambda *_: None)
    monkeypatch.setenv("KOFN_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.slow
@pytest.mark.parametrize(("text", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_configuration_is_refused_by_field(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "star.json").write_text(json.dumps(STAR))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "bad.json").write_text(json.dumps({**STAR, "links": []}))
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert_refused(invoke(path), words, tmp_path / "out")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    assert_refused(invoke(tmp_path / "absent.toml"), "absent.toml: No such file", tmp_path / "out")


def test_folder_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert_refused(invoke(tmp_path / "folder"), "Is a directory", tmp_path / "out")


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert_refused(invoke(path), "not TOML", tmp_path / "out")


def test_bad_trial_on_the_command_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("")
    assert_refused(invoke(path, "--trial", "fixed:9"), "K <= workers = 4, got 'fixed:9'", tmp_path / "out")


def test_single_keys_are_set_on_the_command_line(tmp_path: Path) -> None:
    settings = ("model.learning_rate=0.5", "run.trials=['all']", "run.name = mine", "policy.late_gradient=drop")
    config = make_plan(DEFAULT_CONFIG, settings=settings, out=tmp_path).shared
    assert (config.model.learning_rate, config.run.trials, config.run.name) == (0.5, ("all",), "mine")
    assert config.policy.late_gradient == "drop"
    assert config.model.compute_ms == Config.load(DEFAULT_CONFIG).model.compute_ms, (
        "a key that is not set keeps its default"
    )


def test_path_of_a_setting_is_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.toml").write_text("[model]\ntrace = 'its.csv'\n")
    monkeypatch.chdir(tmp_path)
    assert Config.load(Path("a/mine.toml")).model.trace == str(tmp_path / "a" / "its.csv")
    config = Config.load(Path("a/mine.toml"), ["model.trace=b/mine.csv", "job.modules=c"])
    assert (config.model.trace, config.job.modules) == (str(tmp_path / "b" / "mine.csv"), str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "learning_rate=0.5",
            "--set must be SECTION.KEY=VALUE, model.learning_rate=0.05 for example, got learning_rate=0.5",
        ),
        (
            "model.learning_rate",
            "--set must be SECTION.KEY=VALUE, model.learning_rate=0.05 for example, got model.learning_rate",
        ),
        ("model.a.b=1", "--set must be SECTION.KEY=VALUE, model.learning_rate=0.05 for example, got model.a.b=1"),
        (
            "straggler.mean_ms=1",
            "--set must name a key of a [section], got straggler.mean_ms=1: [[straggler]] is a list",
        ),
        ("model.rate=1", "a key of model must be one of "),
        ("model.learning_rat=1", "dirichlet, got 'learning_rat': did you mean 'learning_rate'?"),
        ("modle.learning_rate=1", "event, got 'modle': did you mean 'model'?"),
        ("compress.rounding=nearst", "'nearest' or 'stochastic', got 'nearst': did you mean 'nearest'?"),
        ("compress.codec=int33", "or module:Name, got 'int33': did you mean 'int32'?"),
        ("job.collective=Rign", "or module:Name, got 'Rign': did you mean 'ring'?"),
        ("model.stragglers=drawm", "or module:Name, got 'drawm': did you mean 'drawn'?"),
        ("run.trials=['progres']", ", got 'progres': did you mean 'progress'?"),
        ("run.trials=['asinc:2']", ", got 'asinc:2': did you mean 'async:2'?"),
        (
            "network.link_mbps=0.1",
            "network.link_mbps must be 0.36 or more with job.rto_ms = 50, got 0.1: a packet of 1134 bytes",
        ),
        ("model.learning_rate=-1", "model.learning_rate must be 1e-09 to 1e+09, got -1"),
    ],
)
def test_bad_keys_on_the_command_line_are_refused(tmp_path: Path, setting: str, words: str) -> None:
    path = tmp_path / "good.toml"
    path.write_text("[[straggler]]\nworkers = [1]\nmean_ms = 1.0")
    assert_refused(invoke(path, "--set", setting), words, tmp_path / "out")


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    result = invoke(path)
    assert result.exit_code == 2
    assert "is not empty" in result.output
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["mine"]


def test_results_cannot_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text("")
    (tmp_path / "out").write_text("")
    assert invoke(path).exit_code == 2


def test_effective_configuration_has_every_key_and_the_command_lines_choices(tmp_path: Path) -> None:
    plan = make_plan(DEFAULT_CONFIG, target="bmv2", driver="netns", objectives=("fixed:2",), out=tmp_path)
    path = tmp_path / "effective.toml"
    path.write_text(to_toml(plan.shared))
    assert Config.load(path) == plan.shared
    assert 'target = "bmv2"' in path.read_text()
    assert 'trials = ["fixed:2"]' in path.read_text()
    assert "rto_ms" in path.read_text()


def test_every_setting_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[network]\ntopology = "t \\"x\\".json"\n[[fault]]\nworkers = [1, 2]\ndrop = 0.25\n[run]\nrecord = true'
        "\n[[link]]\nworkers = [3]\nmbps = 12.5\nat_iteration = 4\nafter_s = 0.5"
        '\n[compress]\nratio = 0.5\n[policy]\nlate_gradient = "drop"\n[[shard]]\nworker = 3\nclasses = [8, 9]'
    )
    config = Config.load(path)
    path.write_text(to_toml(config))
    assert Config.load(path) == config


@pytest.mark.parametrize(
    ("codec", "workers", "widths"),
    [
        ("int32", 64, (32,)),
        ("int4", 7, (4,)),
        ("int4", 8, ()),
        ("auto", 4, (32, 16, 8, 4)),
        ("auto", 64, (32, 16, 8)),
    ],
)
def test_lanes_of_a_codec_hold_the_sum_of_all_workers(codec: str, workers: int, widths: tuple[int, ...]) -> None:
    assert CompressSection(codec=codec).widths(workers) == widths


def test_users_codec_declares_its_own_lanes() -> None:
    CompressSection(codec="package.module:codec").check(workers=64, words=1)


def test_workers_pace_at_the_links_rate_where_it_is_known() -> None:
    assert Config(network=NetworkSection(link_mbps=40.0)).pace_mbps() == 40
    assert Config(network=NetworkSection(link_mbps=None)).pace_mbps() == 0
    assert Config(network=NetworkSection(topology=Path("mine.json"))).pace_mbps() == 0
    assert (
        Config(network=NetworkSection(topology=Path("mine.json")), compress=CompressSection(pace_mbps=30.0)).pace_mbps()
        == 30
    )
    assert Config(compress=CompressSection(pace_mbps=0.0)).pace_mbps() == 0


def test_default_experiment_is_valid() -> None:
    config = Config.load(DEFAULT_CONFIG)
    assert config.run.trials == ("source", DEFAULT, "all")
    assert {rank for entry in config.straggler for rank in entry.workers} == set(range(config.job.workers))


def test_another_run_is_named_before_its_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ports(network: NetworkSection) -> None:
        raise RunError("TCP port 50051 is in use")

    monkeypatch.setattr("kofn.run.runner.check_ports", ports)
    path = tmp_path / "good.toml"
    path.write_text("")
    with hold(tmp_path / "one"):
        result = invoke(path)
    assert result.exit_code == 1
    assert "another run is going on" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["matplotlib", "scipy"])
def test_run_starts_without_slow_imports(library: str) -> None:
    code = f"import sys, kofn.run.runner; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_has_examples() -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert "kofn run --trial throughput --trial fixed:2" in text
    assert "Exit codes" in text


@pytest.mark.parametrize(
    ("given", "trials"),
    [
        ("", (DEFAULT, "all")),
        ("[policy]\nobjective = 'fixed:2'", ("fixed:2", "all")),
        ("[policy]\nobjective = 'all'", ("all",)),
        ("[policy]\nobjective = 'fixed:2'\n[run]\ntrials = ['progress']", ("progress",)),
    ],
)
def test_default_trials_are_the_policy_and_all(given: str, trials: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(given)
    assert Config.load(path).run.trials == trials
