"""A request to the API server of KUBECONFIG that really trains: its pods' processes run in
namespaces of this machine.
"""

import os
from pathlib import Path

import msgspec
import pytest

from tests.k8s.kubelet import Kubelet
from tests.k8s.suite import Suite, run, running

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces"),
    pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="needs a cluster: KUBECONFIG names none"),
]

CONFIG = """
run = {target = 0.85, max_iterations = 300}
model = {learning_rate = 0.1, compute_ms = 1.0}
policy = {objective = "progress"}
"""


def accuracies(folder: Path) -> list[float]:
    """Return the best accuracy of each started worker, from its metrics."""
    found = []
    for path in sorted(folder.glob("*-node-*/_var_lib/kofn/worker.jsonl")):
        lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if b'"params"' in line]
        found.append(max((line["accuracy"] or 0.0 for line in lines), default=0.0))
    return found


@pytest.mark.parametrize("workers", [4, 15])
def test_request_trains_through_the_switch(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "pods"
    folder.mkdir()
    spread: list[float] = []

    async def course(made: Suite) -> None:
        kubelet = Kubelet(made.players_api, made.players.view, made.namespace, folder)
        async with running(kubelet.run()), made.operator():
            await made.submit("digits", accelerators=workers, config=CONFIG)
            await made.until(lambda: made.phase("digits") in ("Running", "Succeeded"), 400)
            await made.until(
                lambda: made.status("digits").get("k") is not None or made.phase("digits") != "Running", 400
            )
            times = [at for name, at in kubelet.started.items() if not name.endswith("-switch")]
            spread.append(max(times) - min(times))
            switch = min(at for name, at in kubelet.started.items() if name.endswith("-switch"))
            assert switch < min(times)
            await made.until(lambda: made.phase("digits") in ("Succeeded", "Failed"), 500)
            assert made.phase("digits") == "Succeeded", made.status("digits")
            await made.until(lambda: not made.left() and not kubelet.running)
            status = made.status("digits")
            told = {name: status.get(name) for name in ("k", "iteration", "lateWorkers", "metric")}
            print(f"{told}, started within {spread[0]:.1f} s")
            assert 0 < status["metric"] <= 1

    run(course, tmp_path)
    reached = accuracies(folder)
    print(f"accuracies {min(reached):.3f} to {max(reached):.3f}")
    assert len(reached) == workers and min(reached) >= 0.85
