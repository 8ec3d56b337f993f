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


EVERY = 10
LASTING = """
run = {max_iterations = 60, target = 1.0}
model = {learning_rate = 0.1, compute_ms = 50.0}
policy = {objective = "all"}
"""


def steps(folder: Path, attempt: int) -> list[dict[int, int]]:
    """Return the checksum of the parameters after each iteration, for each worker of an attempt."""
    found = []
    for path in sorted(folder.glob(f"digits-{attempt}-node-*/_var_lib/kofn/worker.jsonl")):
        whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
        lines = [msgspec.json.decode(line) for line in whole if b'"params"' in line]
        found.append({line["iteration"]: line["params"] for line in lines})
    return found


def checkpoints(folder: Path) -> list[int]:
    """Return the iterations of the whole checkpoints in the claim, ascending."""
    return sorted(int(path.name) for path in (folder / "claims" / "saved").glob("digits-*/*") if path.name.isdecimal())


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


def test_attempt_resumes_at_the_checkpoint_after_everything_was_killed(tmp_path: Path) -> None:
    """The operator and all processes of the pods die at one moment. With k = n the repeated iterations have the same
    parameters, to the bit.
    """
    folder = tmp_path / "pods"
    folder.mkdir()

    def trained(attempt: int) -> int:
        return min((max(each, default=0) for each in steps(folder, attempt)), default=0)

    def under_way() -> bool:
        return trained(1) >= 2 * EVERY + EVERY // 2 and bool(checkpoints(folder))

    async def course(made: Suite) -> None:
        resources = {"requests": {"storage": "1Gi"}}
        claim = {"metadata": {"name": "saved"}, "spec": {"accessModes": ["ReadWriteMany"], "resources": resources}}
        await made.api.create("persistentvolumeclaims", claim, made.namespace)
        kubelet = Kubelet(made.players_api, made.players.view, made.namespace, folder)
        async with made.operator() as gateway, running(kubelet.run()):
            await made.submit("digits", config=LASTING, checkpoint={"claim": "saved", "every": EVERY})
            await made.until(lambda: made.phase("digits") == "Running", 400)
            await made.until(lambda: under_way() or made.phase("digits") != "Running", 400)
            assert under_way(), made.status("digits")
            gateway.kill()
            kubelet.kill()
        saved, last = checkpoints(folder)[-1], max(max(each) for each in steps(folder, 1))
        for pod in made.players.view.of("pods"):
            await made.api.delete("pods", pod["metadata"]["name"], made.namespace, grace_s=0)
        async with made.operator(), running(kubelet.run()):
            await made.until(lambda: made.phase("digits") in ("Succeeded", "Failed"), 500)
            status = made.status("digits")
            assert (made.phase("digits"), status["attempt"]) == ("Succeeded", 2), status
            before, after = steps(folder, 1), steps(folder, 2)
            assert [(min(each), max(each)) for each in after] == [(saved + 1, 60)] * 3
            print(f"killed after iteration {last}, resumed at {saved}: {last - saved} repeated")
            assert 0 < last - saved < 2 * EVERY  # an interval, and that of the checkpoint that was being written
            for one, other in zip(before, after, strict=True):
                assert all(other[each] == params for each, params in one.items() if each > saved)
            await made.api.delete("trainingrequests", "digits", made.namespace)
            await made.until(lambda: not made.request("digits") and not made.left() and not kubelet.running)
        assert checkpoints(folder)[-1] == 60
        kept = await made.api.get("persistentvolumeclaims", "saved", made.namespace)
        assert kept is not None and "deletionTimestamp" not in kept["metadata"]

    run(course, tmp_path)
