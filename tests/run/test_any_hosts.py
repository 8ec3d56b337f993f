"""Scripts in PyTorch on machines that share nothing (machines.py): torchrun, a rendezvous, and a path to the switch."""

import os
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from cryptography.fernet import Fernet

from kofn.rpc.certificates import make_certificates
from tests.run.machines import CONTROLLER, SWITCH, Machine, lines, machines
from tests.waiting import until

__all__ = ["machines"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch"),
]

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"

RENDEZVOUS = f"{SWITCH}:29600"

JOB = """
[run]
max_iterations = {iterations}
[job]
workers = 2
[policy]
objective = "{objective}"
[model]
compute_ms = {compute_ms}
[torch]
script = "train.py"
group = "{group}"
"""


def start(machines: list[Machine], tmp_path: Path, script: str, **job: object) -> list["subprocess.Popen[bytes]"]:
    """Start switch, controller and rendezvous on the first machine, and a torchrun on each of the others."""
    server, *hosts = machines
    key = Fernet.generate_key().decode()
    known = {"KOFN_RENDEZVOUS": RENDEZVOUS, "KOFN_RENDEZVOUS_KEY": key}
    make_certificates(server.folder / "certs", {1: len(hosts)})
    for machine in machines:
        (machine.folder / "job.toml").write_text(JOB.format(**job))
    server.start("switch", "--tunnels", str(len(hosts)))
    server.start("controller", "job.toml", "--certs", "certs")
    hand_out = ("-m", "kofn.torch.scripts.hand_out", "job.toml", "--controller", CONTROLLER, "--at", RENDEZVOUS)
    server.start(*hand_out, "--certs", "certs", program="python", environment=known)
    trainings = []
    for rank, host in enumerate(hosts):
        shutil.copy(EXAMPLES / script, host.folder / "train.py")
        assert host.start("link", "job.toml", "--rank", str(rank), "--switch", SWITCH).wait(30) == 0, host.words()
        (host.folder / "job.toml").unlink()  # the rendezvous supplies it
        environment = known | own(rank, job["group"])
        trainings.append(host.start(*torchrun(rank, job["group"]), program="torchrun", environment=environment))
    return trainings


def torchrun(rank: int, group: object) -> tuple[str, ...]:
    together = ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "192.0.2.2", "--master-port", "29500")
    each = ("--max-restarts", "1", "--master-port", "29500")
    return (*(together if group == "job" else each), "--nproc-per-node", "1", "train.py")


def own(rank: int, group: object) -> dict[str, str]:
    """Return a torchrun's environment beyond the rendezvous; the rank, if torchrun gives no rank of the job."""
    return {"GLOO_SOCKET_IFNAME": "eth0"} | ({"KOFN_RANK": str(rank)} if group == "worker" else {})


def parameters(machines: list[Machine]) -> list[dict[int, str]]:
    """Return each worker's parameter fingerprints by iteration."""
    read = [map(msgspec.json.decode, lines(machine, rank)) for rank, machine in enumerate(machines[1:])]
    return [{line["iteration"]: line["params"] for line in each} for each in read]


def test_ddp_trains_in_one_process_group(machines: list[Machine], tmp_path: Path) -> None:
    job = {"iterations": 200, "objective": "all", "compute_ms": 0, "group": "job"}
    trainings = start(machines, tmp_path, "digits_ddp.py", **job)
    assert [each.wait(150) for each in trainings] == [0, 0], [machine.words() for machine in machines]
    first, second = parameters(machines)
    assert first == second and len(first) == 200
    assert not list(Path(machines[1].folder).glob("kofn-job-*"))


@pytest.mark.long
def test_killed_worker_rejoins(machines: list[Machine], tmp_path: Path) -> None:
    job = {"iterations": 500, "objective": "fixed:1", "compute_ms": 40, "group": "worker"}
    trainings = start(machines, tmp_path, "digits_elastic.py", **job)
    until(lambda: (machines[1].folder / "worker-0.jsonl").exists() and len(lines(machines[1], 0)) > 100, 100)
    os.kill(script_of(trainings[1]), signal.SIGKILL)
    assert [each.wait(150) for each in trainings] == [0, 0], [machine.words() for machine in machines]
    first, second = parameters(machines)
    assert len(first) == max(second) == 500
    assert set(first) - set(second)  # the killed worker missed some
    assert all(first[iteration] == params for iteration, params in second.items())


def script_of(torchrun: "subprocess.Popen[bytes]") -> int:
    """Return the process id of the training."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return next(int(each) for each in children if b"train.py" in Path(f"/proc/{each}/cmdline").read_bytes())
