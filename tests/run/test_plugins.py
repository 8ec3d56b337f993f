"""Plug-ins of every kind from a user's folder; only the configuration names them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kofn.cli.main import main
from tests.run.real_run import OWN_NETWORK
from tests.sim.lab import COSTS, written

ROOT = Path(__file__).parents[2]

MINE = """
import numpy as np
from kofn_host.collectives.kinds.ring import Ring
from kofn_host.collectives.peers import PeerCommunicator
from kofn_host.workload.straggler_source import StragglerSource
from kofn_host.workload.workload import Workload

NUMBER = 3

class Bowl(Workload):
    metric = None

    def __init__(self, config, rank):
        self.parameters = np.ones(2000, np.float32)
        self._share = np.float32(rank + 1)

    def gradient(self, iteration, batch=0):
        return None, self._share * self.parameters

class MyRing(Ring):
    def all_reduce(self, array, **given):
        print("my ring")
        return super().all_reduce(array, **given)

class Half(PeerCommunicator):
    def _prepare(self, host):
        return ""

    def _carry(self, task):
        raise NotImplementedError

class EveryFourth(StragglerSource):
    def mean_s(self, iteration):
        return 0.005

    def blocking_s(self, iteration, batch=0, now_s=0.0):
        return 0.020 if (iteration + self.rank) % 4 == 0 else 0.0

def least(forecast):
    return forecast.ks

def family(workers):
    from kofn_host.compression.codecs.fixed_point import FixedPoint
    return [FixedPoint(workers=workers, width=width) for width in (32, 4)]

def broken(workers, rounding):
    raise ValueError("no idea")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's folder; Python finds it by the working directory only."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "narrow.py").write_text((ROOT / "examples" / "codecs" / "narrow.py").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("compress.codec=gone:Codec", "codec 'gone:Codec' cannot be loaded: ModuleNotFoundError"),
        ("compress.codec=mine:NUMBER", "codec 'mine:NUMBER' must be a callable that returns a Codec, got a int"),
        ("compress.codec=mine:broken", "codec 'mine:broken' failed: ValueError: no idea"),
        (
            "compress.codec=mine:family",
            "job.words must be a multiple of 8 with compress.codec = 'mine:family', got 4",
        ),
        ("compress.codec=mine", "compress.codec must be int32, int16, int8, int4, auto, "),
        ("job.collective=gone:Ring", "collective 'gone:Ring' cannot be loaded: ModuleNotFoundError"),
        (
            "job.collective=mine:Bowl",
            "must be a class derived from kofn_common.collectives.job_collective",
        ),
        (
            "job.collective=mine:Half",
            "'mine:Half' must define _connect, _interrupt, _release, got an abstract class",
        ),
        ("job.collective=glo", "got 'glo': did you mean 'gloo'?"),
        ("model.workload=mine:Gone", "workload 'mine:Gone' cannot be loaded: AttributeError"),
        (
            "model.workload=mine:NUMBER",
            "workload 'mine:NUMBER' must be a class derived from kofn_host.workload.workload.Workload, got a int",
        ),
        ("model.workload=digit", "got 'digit': did you mean 'digits'?"),
        ("model.stragglers=gone:Late", "straggler 'gone:Late' cannot be loaded: ModuleNotFoundError"),
        ("model.stragglers=mine:Bowl", "must be a class derived from kofn_host.workload.straggler_source"),
        ("model.stragglers=trace", "model.trace must be given with model.stragglers = 'trace'"),
        ("run.trials=['gone:least']", "objective 'gone:least' cannot be loaded: ModuleNotFoundError"),
        ("run.trials=['mine:NUMBER']", "objective 'mine:NUMBER' must be an Objective, or a callable"),
        ("run.trials=['best']", "run.trials must be all, progress, "),
    ],
)
def test_invalid_plug_in_is_refused_before_the_start(folder: Path, command: str, setting: str, words: str) -> None:
    result = CliRunner().invoke(main, [command, "--set", setting, "--out", "out"])
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert said.startswith(f"kofn {command}: ") and words in said
    assert "Traceback" not in said
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_own_plug_ins_run_in_virtual_time(folder: Path) -> None:
    config = written(folder, target=1.0, iterations=12)
    COSTS.save(folder / "costs.json")
    own = ("compress.codec=narrow:Narrow", "model.stragglers=mine:EveryFourth")
    settings = [part for setting in own for part in ("--set", setting)]
    arguments = ["--trial", "mine:least", "--trial", "all", *settings, "--costs", "costs.json", "--out", "out"]
    result = CliRunner().invoke(main, ["simulate", str(config), *arguments])
    assert result.exit_code == 1, result.output  # target accuracy 1 is not reached
    (worker,) = (folder / "out").glob("mine*/worker-1.jsonl")
    lines = [line for line in map(json.loads, worker.read_text().splitlines()) if line.get("computed")]
    blocked = {line["iteration"] for line in lines if line["blocking_s"] > 0}
    assert blocked == {iteration for iteration in (3, 7, 11) if iteration in {line["iteration"] for line in lines}}
    assert {line["k"] for line in lines[-3:]} == {1}, "the plug-in's cheapest k is 1"


@pytest.mark.slow
def test_own_workload_runs_in_virtual_time(folder: Path) -> None:
    """All replicas are equal, and so is the sum of each worker's gradients."""
    config = written(folder, target=1.0, iterations=5)
    COSTS.save(folder / "costs.json")
    arguments = ["--trial", "all", "--set", "model.workload=mine:Bowl", "--set", "model.momentum=0"]
    result = CliRunner().invoke(main, ["simulate", str(config), *arguments, "--costs", "costs.json", "--out", "out"])
    assert result.exit_code == 0, result.output
    written_down = [path.read_text().splitlines() for path in sorted((folder / "out" / "all").glob("worker-*.jsonl"))]
    digests = [[line["params"] for line in map(json.loads, lines) if "params" in line] for lines in written_down]
    assert len(digests) == 3 and len({*map(tuple, digests)}) == 1
    assert len({*digests[0]}) == 5, "the parameters must change in every iteration"


CONFIG = """
[run]
max_iterations = 20
trials = ["{trial}"]
[job]
workers = 2
collective = "{collective}"
[compress]
codec = "{codec}"
[model]
workload = "mine:Bowl"
stragglers = "mine:EveryFourth"
compute_ms = 1
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.parametrize(
    ("trial", "collective", "codec"),
    [("mine:least", "switch", "narrow:Narrow"), pytest.param("all", "mine:MyRing", "int32", marks=pytest.mark.long)],
)
def test_own_plug_ins_run_for_real(folder: Path, trial: str, collective: str, codec: str) -> None:
    (folder / "own.toml").write_text(CONFIG.format(trial=trial, collective=collective, codec=codec))
    command = [str(Path(sys.executable).parent / "kofn"), "run", "own.toml", "--out", "out", "--json", "--quiet"]
    environment = {**os.environ, "KOFN_STATE_DIR": str(folder / "state")}
    done = subprocess.run(
        [*OWN_NETWORK, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ping h1" not in done.stderr, "--quiet must not print checks that passed"
    (found,) = json.loads(done.stdout)["trials"]
    assert (found["iterations"], found["ledger"]) == (20, collective == "switch")
    assert found["identity_error"] is None and found["conservation_error"] is None
    if collective != "switch":
        (log,) = (folder / "out").rglob("worker-0.log")
        assert log.read_text().count("my ring") == 20


def test_own_plug_ins_are_compared(folder: Path) -> None:
    own = {"my ring": "mine:MyRing", "ring": "ring"}
    entries = [
        f'[[contender]]\nname = "{name}"\ntrial = "all"\n'
        f'set = {{ "job.collective" = "{kind}", "compress.codec" = "int32" }}\n'
        for name, kind in own.items()
    ]
    narrow = '[[contender]]\nname = "narrow"\ntrial = "all"\nset = { "compress.codec" = "narrow:Narrow" }\n'
    (folder / "own.toml").write_text('[experiment]\nname = "own"\nmode = "run"\n' + "".join([*entries, narrow]))
    result = CliRunner().invoke(main, ["experiment", "own.toml", "--seeds", "1", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["cells"] == ["my ring, seed 1", "ring, seed 1", "narrow, seed 1"]
    (folder / "own.toml").write_text((folder / "own.toml").read_text().replace("mine:MyRing", "gone:Ring"))
    refused = CliRunner().invoke(main, ["experiment", "own.toml", "--out", "out"])
    assert refused.exit_code == 2
    assert "'gone:Ring' cannot be loaded: ModuleNotFoundError" in " ".join(refused.stderr.split())
