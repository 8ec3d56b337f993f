"""Scripts in PyTorch: torchrun at each host of a real run, through the switch; a worker that dies rejoins."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from tests.run.real_run import RealRun

MANAGEMENT = "172.30.255.1"
"""This side's address on the management network."""

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch"),
]

TOGETHER = """
[run]
trials = ["all"]
max_iterations = 200
[job]
workers = 2
[model]
compute_ms = 0
"""

APART = f"""
[run]
trials = ["progress"]
max_iterations = 1500
[job]
workers = 3
[model]
compute_ms = 15
[torch]
script = "{EXAMPLES / "digits_elastic.py"}"
group = "worker"
max_restarts = 1
[[straggler]]
workers = [1]
mean_ms = 40
"""


SHARDED = f"""
[run]
trials = ["fixed:3"]
[job]
workers = 4
words = 4
exact_slots = 256
[model]
compute_ms = 0
[torch]
script = "{EXAMPLES / "zero.py"}"
arguments = ["--steps", "40", "--freeze-step", "10", "--stage", "STAGE"]
"""

RESTART = """
[[event]]
at_iteration = 15
kill = "switch"
[[event]]
at_iteration = 15
after_s = 1
start = "switch"
"""


BY_RENDEZVOUS = f"""
import os
import runpy

known = ("KOFN_RANK", "KOFN_METRICS")
for name in [name for name in os.environ if name.startswith("KOFN_") and name not in known]:
    del os.environ[name]
os.environ.update(KOFN_RENDEZVOUS="{{address}}", KOFN_RENDEZVOUS_KEY="{{key}}")
runpy.run_path("{EXAMPLES / "digits_elastic.py"}")
"""


def trial(run: RealRun) -> dict[str, Any]:
    (found,) = json.loads((run.out / "summary.json").read_text())["trials"]
    assert found["identity_error"] is found["conservation_error"] is found["conservation_unchecked"] is None
    return dict(found)


def test_ddp_trains_in_one_process_group(tmp_path: Path) -> None:
    with RealRun(tmp_path, "--torch", str(EXAMPLES / "digits_ddp.py"), config=TOGETHER) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
        found = trial(run)
        assert found["iterations"] == 200
        log = (run.out / "all" / "logs" / "worker-0.log").read_text()
    last = log.splitlines()[-1]
    assert last.startswith("step 200: ")
    assert float(last.rpartition(" ")[2].rstrip("%")) > 93


@pytest.mark.timeout(240)
@pytest.mark.parametrize("stage", [1, 3])
def test_sharded_optimizer_votes_with_three_of_four(stage: int, tmp_path: Path) -> None:
    with RealRun(tmp_path, config=SHARDED.replace("STAGE", str(stage))) as run:
        assert run.wait(200) == 0, run.text()
        assert run.leftovers() == []
        found = trial(run)
        log = next(run.out.glob("fixed*3/logs/worker-0.log")).read_text()
    assert found["iterations"] == 40
    assert found["k_iterations"] == {"3": 30, "4": 10}
    assert sum(found["late_by_worker"]) > 0
    losses = [float(line.rpartition(" ")[2]) for line in log.splitlines() if line.startswith("step ")]
    assert losses[1] < losses[0] < 4


@pytest.mark.timeout(240)
def test_restarted_switch_ends_a_sharded_training_at_once(tmp_path: Path) -> None:
    config = SHARDED.replace("STAGE", "2").replace('"40"', '"100000"')
    with RealRun(tmp_path, config=config + RESTART) as run:
        assert run.wait(200) == 1, run.text()
        assert run.leftovers() == []
        logs = [next(run.out.glob(f"fixed*3/logs/worker-{rank}.log")).read_text() for rank in range(4)]
    assert all("the switch has restarted: its slots are of generation" in log for log in logs), logs
    assert not any("no block was summed" in log or "gave up" in log for log in logs), "no worker may time out"


@pytest.mark.timeout(240)
def test_killed_worker_is_restarted_by_torchrun(tmp_path: Path) -> None:
    with RealRun(tmp_path, config=APART) as run:
        run.until(lambda: run.lines(2, "progress") > 100, "training", 120)
        os.kill(script(run, 2), signal.SIGKILL)
        assert run.wait(200) == 0, run.text()
        assert run.leftovers() == []
        found = trial(run)
    assert (found["iterations"], found["rejoins"]) == (1500, 1)
    assert found["late_by_worker"][1] > 0
    assert found["logged"]["accuracy"] > 0.9


@pytest.mark.timeout(300)
def test_workers_need_only_a_rendezvous(tmp_path: Path) -> None:
    """Configuration, controller, switch, certificate and token come from it, also for a restarted worker."""
    key, address = Fernet.generate_key().decode(), f"{MANAGEMENT}:29600"
    train = tmp_path / "train.py"
    train.write_text(BY_RENDEZVOUS.format(address=address, key=key))
    config = APART.replace(str(EXAMPLES / "digits_elastic.py"), str(train))
    with RealRun(tmp_path, config=config) as run:
        run.until((run.out / "progress" / "logs" / "worker-0.log").exists, "workers", 120)
        server = [
            *("nsenter", f"--net=/proc/{run.process.pid}/ns/net"),
            *(sys.executable, "-m", "kofn_host.worker.hand_out", str(next(run.out.rglob("effective.toml")))),
            *("--controller", f"{MANAGEMENT}:50052", "--at", address),
            *("--certs", str(next(run.out.rglob("ca.pem")).parent)),
        ]
        handing_out = subprocess.Popen(server, env={**os.environ, "KOFN_RENDEZVOUS_KEY": key})
        try:
            run.until(lambda: run.lines(2, "progress") > 100, "training", 120)
            os.kill(script(run, 2), signal.SIGKILL)
            assert run.wait(200) == 0, run.text()
        finally:
            handing_out.kill()
            handing_out.wait()
        assert trial(run)["rejoins"] == 1


def script(run: RealRun, rank: int) -> int:
    """Return the process id of a worker's training, not of its torchrun."""
    for pid in run.processes():
        command, environment = (
            Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0") for name in ("cmdline", "environ")
        )
        if command[1:2] == [b"-u"] and f"KOFN_RANK={rank}".encode() in environment:
            return pid
    raise AssertionError(f"worker {rank} trains nothing: {run.text()}")
