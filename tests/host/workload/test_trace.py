"""Blocking times from a file."""

from pathlib import Path

import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.workload.straggler_source import load_stragglers, straggler_class
from kofn_host.workload.stragglers.trace import read_trace, write_trace


def traced(tmp_path: Path, text: str) -> Config:
    (tmp_path / "blocked.csv").write_text(text)
    (tmp_path / "run.toml").write_text("[model]\ntrace = 'blocked.csv'\ncompute_ms = 4")
    return Config.load(tmp_path / "run.toml")


@pytest.mark.parametrize(
    "text",
    [
        "iteration,rank,blocking_ms\n3,1,20\n4,0,1.5\n",
        "3, 1, 20\n\n4,0,1.5",
        '{"rank": 1, "iteration": 3, "blocking_ms": 20}\n{"iteration": 4, "rank": 0, "blocking_ms": 1.5, "why": 7}\n',
    ],
)
def test_worker_is_blocked_as_the_file_says(tmp_path: Path, text: str) -> None:
    config = traced(tmp_path, text)
    straggler_class(config).check(config)
    first, second = (load_stragglers(config, rank) for rank in (0, 1))
    assert [second.blocking_s(iteration) for iteration in (2, 3, 4)] == [0, 0.02, 0]
    assert (first.blocking_s(4), first.blocking_s(4, 2, 7.0), first.mean_s(4)) == (0.0015, 0.0015, 0.0015)
    assert first.compute_s(1) == 0.004


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3,1", "line 1: must be iteration,rank,blocking_ms, .*, got '3,1'"),
        ("1,0,1\n3,one,2", "line 2: .*, got '3,one,2'"),
        ("3,1,-2", "line 1"),
        ("3,1,inf", "line 1"),
        ("3,1,nan", "line 1"),
        ('{"rank": 1}', "line 1"),
        ("{", "line 1"),
        ("1,4,2", r"must be 0 to 3 \(job.workers - 1\), got 4"),
    ],
)
def test_invalid_trace_is_named(tmp_path: Path, text: str, words: str) -> None:
    config = traced(tmp_path, text)
    with pytest.raises(ConfigError, match=words):
        straggler_class(config).check(config)


def test_missing_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[model]\ntrace = 'gone.csv'")
    config = Config.load(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=r"gone.csv cannot be read as a trace: .*No such file"):
        straggler_class(config).check(config)
    (tmp_path / "run.toml").write_text("[model]\ntrace = 'gone.csv'\nstragglers = 'drawn'")
    with pytest.raises(ConfigError, match=r"model.trace and model.stragglers = 'drawn' must not both be given"):
        Config.load(tmp_path / "run.toml")


def test_written_trace_is_read_back(tmp_path: Path) -> None:
    blocked_s = {(2, 1): 0.0123456, (1, 0): 0.0, (2, 0): 1.5}
    write_trace(tmp_path / "own.csv", blocked_s)
    assert (tmp_path / "own.csv").read_text().splitlines()[:2] == ["iteration,rank,blocking_ms", "1,0,0.000"]
    assert read_trace(str(tmp_path / "own.csv")) == pytest.approx(blocked_s, abs=5e-7)
