"""`kofn experiment scale`, and where tasks run."""

import json
import operator
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from kofn.experiments.engine import TaskEngine
from kofn.experiments.scale.command import scale
from kofn.experiments.scale.tasks import ENDED, RESULTS, ScaleTask
from kofn_common.config.errors import ConfigError

WORLD = """
[run]
max_iterations = 20
[policy]
late_gradient = "abort"
[[straggler]]
workers = "all"
mean_ms = 10
"""


def swept(folder: Path, *options: str, world: str = WORLD) -> Result:
    """Run a small sweep in this process."""
    (folder / "mine.toml").write_text(world)
    words = [str(folder / "mine.toml"), "--workers", "10,20", "--seeds", "2", "--processes", "1", *options]
    return CliRunner().invoke(scale, [*words, "--out", str(folder / "out")])


def test_table_has_a_row_for_every_combination(tmp_path: Path) -> None:
    done = swept(tmp_path, "--k", "0.5,batch-sync:4", "--law", "constant,pareto", "--axis", "job.racks=1")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "out" / RESULTS)
    assert len(found) == 2 * 2 * 2 * 2
    assert found.groupby("choice").k.unique().map(sorted).to_dict() == {"0.5": [5, 10], "batch-sync:4": [4]}
    assert set(found[found.choice == "0.5"].late_gradient) == {"abort"}
    assert (found[found["straggler.law"] == "constant"].mean_iteration_s < 0.021).all()
    assert (found.seed == found["run.seed"]).all()
    assert "16 tasks" in done.output


def test_finished_tasks_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert swept(tmp_path, "--k", "0.5").exit_code == 0
    whole = (tmp_path / "out" / RESULTS).read_bytes()
    lines = (tmp_path / "out" / ENDED).read_text().splitlines()
    (tmp_path / "out" / ENDED).write_text("\n".join(lines[1:]) + "\n" + lines[0][:40])
    simulated: list[str] = []
    row = ScaleTask.row
    monkeypatch.setattr(ScaleTask, "row", lambda task: simulated.append(task.key) or row(task))
    assert swept(tmp_path, "--k", "0.5").exit_code == 0
    assert simulated == [json.loads(lines[0])["task"]]
    assert (tmp_path / "out" / RESULTS).read_bytes() == whole


def test_failed_task_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ScaleTask.row

    def fails(task: ScaleTask) -> object:
        if dict(task.values)["job.workers"] == 20:
            raise MemoryError("no memory")
        return row(task)

    monkeypatch.setattr(ScaleTask, "row", fails)
    done = swept(tmp_path, "--k", "0.5")
    assert done.exit_code == 1
    assert len(pd.read_csv(tmp_path / "out" / RESULTS)) == 2
    assert done.output.count("no memory") == 2
    monkeypatch.setattr(ScaleTask, "row", row)
    assert swept(tmp_path, "--k", "0.5").exit_code == 0
    assert len(pd.read_csv(tmp_path / "out" / RESULTS)) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--axis", "racks=2"], "--axis must be SECTION.KEY=VALUE,..., got 'racks=2'"),
        (["--axis", "job.racks=3"], "job.workers must be a multiple of job.racks (3), got 10"),
        (["--k", "fast"], "run.trials must be"),
        (["--cluster", "slurm"], "--cluster must be tcp://HOST:PORT or module:Class, got 'slurm'"),
        (["--cluster", "no_such:Cluster"], "--cluster no_such:Cluster: "),
        (["--cluster", "json:dumps"], "--cluster json:dumps: json has no class dumps"),
    ],
)
def test_wrong_command_line_is_refused(tmp_path: Path, options: list[str], words: str) -> None:
    done = swept(tmp_path, *options)
    assert done.exit_code == 2
    assert words in done.output


def test_results_of_another_world_stay(tmp_path: Path) -> None:
    assert swept(tmp_path, "--k", "0.5").exit_code == 0
    done = swept(tmp_path, "--k", "0.5", world=WORLD.replace("10", "11"))
    assert done.exit_code == 2
    assert "must be the world of this sweep, got another world" in done.output


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order(processes: int) -> None:
    engine = TaskEngine(processes=processes)
    assert [*engine.in_order(operator.neg, range(40), lambda item, why: 0)] == [-item for item in range(40)]


def test_real_runs_need_this_machine(tmp_path: Path) -> None:
    from kofn.experiments.k.command import k  # noqa: PLC0415  # its libraries

    done = CliRunner().invoke(k, ["--cluster", "tcp://127.0.0.1:1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "--cluster tcp://127.0.0.1:1 needs --simulate" in done.output


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
    import os  # noqa: PLC0415  # for the process of a cluster

    if item:
        os._exit(1)
    return item
