"""One worker alone trains on all data, with rank 0's blocking, without a network."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.results.folder import TrialFolder
from kofn_common.results.worker_metrics import WorkerMetrics, read_worker
from kofn_host.training.alone import alone, train
from kofn_host.training.metrics import Metrics
from kofn_host.workload.workload import load_workload

CONFIG = Config.parse("""
[run]
target = 0.8
max_iterations = 300
alone = true
[model]
batch = 16
learning_rate = 0.1
compute_ms = 10
[[straggler]]
workers = [0]
law = "constant"
mean_ms = 2
[[straggler]]
workers = [3]
law = "constant"
mean_ms = 500
""")


def trained(folder: Path, config: Config) -> WorkerMetrics:
    """Return the metrics of a worker that is alone in virtual time, where a step takes a millisecond."""
    now_s = 100.0

    def wait_until(end_s: float) -> None:
        nonlocal now_s
        now_s = end_s + 0.001

    entry = TrialFolder(path=folder, objective="alone", shared=folder)
    with Metrics(entry.metrics(0)) as metrics:
        train(config, metrics, lambda: now_s, wait_until)
    return read_worker(entry, 0)


def test_worker_alone_trains_to_the_target_with_its_own_blocking(tmp_path: Path) -> None:
    lines = trained(tmp_path, CONFIG).iterations
    assert lines[-1].accuracy is not None and lines[-1].accuracy >= 0.8
    assert all(line.accuracy is not None and line.accuracy < 0.8 for line in lines[:-1])
    assert [line.iteration_s for line in lines] == [pytest.approx(0.013)] * len(lines)
    assert all((line.k, line.count, line.members) == (1, 1, "0x1") for line in lines)


def test_worker_alone_ends_with_the_last_iteration(tmp_path: Path) -> None:
    assert len(trained(tmp_path, replace(CONFIG, run=replace(CONFIG.run, target=1.0))).iterations) == 300


def test_worker_alone_has_all_data() -> None:
    shares = [len(load_workload(CONFIG, rank)._train.train.labels) for rank in range(4)]  # type: ignore[attr-defined]
    owned = Config.parse("[[shard]]\nworker = 1\nclasses = [3, 4]")
    for config in (CONFIG, owned):
        assert len(load_workload(alone(config), 0)._train.train.labels) == sum(shares)  # type: ignore[attr-defined]


def test_script_is_not_trained_alone() -> None:
    with pytest.raises(ConfigError, match=r"run\.alone must be false with torch\.script, got true"):
        Config.parse('[run]\nalone = true\n[torch]\nscript = "train.py"')
