"""The cells of an experiment are carried out in processes, and on Dask clusters."""

import operator
import os
import sys
from pathlib import Path

import pytest

from kofn.experiments.engine import TaskEngine
from kofn_common.config.errors import ConfigError
from tests.experiments.test_experiments import FILE, invoke


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order(processes: int) -> None:
    engine = TaskEngine(processes=processes)
    assert [*engine.in_order(operator.neg, range(40), lambda item, why: 0)] == [-item for item in range(40)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cluster", "slurm"], "--cluster must be tcp://HOST:PORT or module:Class, got 'slurm'"),
        (["--cluster", "no_such:Cluster"], "--cluster no_such:Cluster: "),
        (["--cluster", "json:dumps"], "--cluster json:dumps: json has no class dumps"),
        (["--cluster", "tcp://127.0.0.1:1", "--mode", "run"], "needs --mode simulate or scale"),
        (["--only", "straggler"], "--only must be AXIS=VALUE,..., got 'straggler'"),
    ],
)  # fmt: skip
def test_wrong_command_line_is_refused(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "question.toml").write_text(FILE)
    done = invoke("experiment", tmp_path / "question.toml", *options, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # of Dask
def test_table_is_the_same_on_every_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue")
    from bench import scale_sweep  # noqa: PLC0415  # of an extra

    (tmp_path / "a folder").symlink_to(sys.prefix)
    monkeypatch.setattr("sys.executable", str(tmp_path / "a folder" / "bin" / "python"))
    with scale_sweep.configured(tmp_path):
        found = scale_sweep.rows(1, tmp_path)
    assert [(row["rows"], row["failed"]) for row in found] == [(50, 0)] * 4
    assert len({row["sha256"] for row in found}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Dask
@pytest.mark.long
def test_item_that_ends_its_workers_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from distributed import LocalCluster  # noqa: PLC0415  # of an extra

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        engine = TaskEngine(cluster=cluster.scheduler_address)
        with pytest.raises(ConfigError):
            TaskEngine(cluster="127.0.0.1").check()
        found = dict(engine.results(_ends_its_process, [0, 1, 0], lambda item, why: why))
    assert (found[0], found[2]) == (0, 0)
    assert "died" in str(found[1])


def _ends_its_process(item: int) -> object:
    if item:
        os._exit(1)
    return item
