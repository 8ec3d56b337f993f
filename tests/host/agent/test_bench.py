"""The parts of bench.agent."""

import contextlib
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.agent import MeasuredWorker, _engine_task_cpu_s, anchors
from kofn_host.stopwatch import Times


def test_only_engine_threads_that_still_run_count(tmp_path: Path) -> None:
    for name, comm in (("1", "kofn-engine"), ("2", "python3")):
        task = tmp_path / name
        task.mkdir()
        (task / "comm").write_text(f"{comm}\n")
        (task / "schedstat").write_text("2000000000 5 6\n")
    assert [_engine_task_cpu_s(tmp_path / name) for name in ("1", "2", "ended")] == [2.0, 0.0, 0.0]


def test_reading_the_engines_time_is_no_cost_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> float:
        until_s = time.process_time() + 0.05
        while time.process_time() < until_s:
            pass
        return 0.0

    worker: Any = SimpleNamespace(reduce=lambda: None, _communicator=SimpleNamespace(reduced=Times()))
    monkeypatch.setattr("bench.agent.engine_cpu_s", read)
    assert MeasuredWorker.cost(worker).whole < 0.04


def test_worker_is_compared_with_gloo_where_pytorch_is_installed() -> None:
    found = anchors(np.ones(10_000, np.float32), packets=130, payload=1_088)
    with contextlib.ExitStack() as stack:
        for anchor in found.values():
            stack.callback(anchor.close)
        assert all(anchor.cpu_s() > 0 for anchor in found.values())
    assert [*found] == [*["of_gloo"] * (find_spec("torch") is not None), "of_coalesced", "of_bare", "of_ring"]
