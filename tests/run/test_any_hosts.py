"""Run the recipe of docs/howto/pytorch.md for machines that share nothing (machines.py), as the page has it."""

import os
import shlex
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from tests.docs.markdown import ROOT, blocks
from tests.run.machines import Machine, lines, machines
from tests.waiting import until

__all__ = ["machines"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: kofn/run/setup.sh torch"),
]

EXAMPLES = ROOT / "examples" / "torch"

PAGE = {block.note: block.text for block in blocks(ROOT / "docs" / "howto" / "pytorch.md") if block.note}

ON_SWITCH, ON_WORKER = PAGE["on the switch's machine"], PAGE["on a worker's machine"]


def start(machines: list[Machine], script: str, job: str, on_worker: str) -> list["subprocess.Popen[bytes]"]:
    """Start switch, controller and rendezvous on the first machine, and torchrun on each of the others."""
    server, *hosts = machines
    for machine in machines:
        (machine.folder / "job.toml").write_text(job)
    printed = server.folder / "printed"
    for line in ON_SWITCH.splitlines():
        program, *arguments = command(line)
        process = server.start(*arguments, program=program, out=printed)
        if arguments[0] == "certs":
            assert process.wait(30) == 0, server.words()
    until(lambda: "KOFN_RENDEZVOUS_KEY=" in printed.read_text())
    known = dict(line.split("=", 1) for line in printed.read_text().splitlines() if line.startswith("KOFN_"))
    trainings = []
    for rank, host in enumerate(hosts):
        shutil.copy(EXAMPLES / script, host.folder / "train.py")
        text = on_worker.replace("$rank", str(rank)).replace("KEY=KEY", f"KEY={known['KOFN_RENDEZVOUS_KEY']}")
        *_, link, torchrun = filter(None, map(command, text.splitlines()))
        environment = exports(text)
        assert known.items() <= environment.items()
        assert host.start(*link[1:], program=link[0]).wait(30) == 0, host.words()
        (host.folder / "job.toml").unlink()  # the rendezvous hands it out
        trainings.append(host.start(*torchrun[1:], program=torchrun[0], environment=environment))
    return trainings


def command(line: str) -> list[str]:
    """Return the words of a line that runs a program of .venv/bin; none for other lines."""
    words = shlex.split(line, comments=True)
    folder, _, program = words[0].rpartition("/") if words else ("", "", "")
    return [program, *words[1:]] if folder == ".venv/bin" else []


def exports(text: str) -> dict[str, str]:
    words = [shlex.split(line, comments=True) for line in text.splitlines()]
    return dict(line[1].split("=", 1) for line in words if line[:1] == ["export"])


def parameters(machines: list[Machine]) -> list[dict[int, str]]:
    """Return the parameters' fingerprints by iteration, for each worker."""
    read = [map(msgspec.json.decode, lines(machine, rank)) for rank, machine in enumerate(machines[1:])]
    return [{line["iteration"]: line["params"] for line in each} for each in read]


@pytest.mark.long
def test_recipe_trains_in_one_process_group(machines: list[Machine]) -> None:
    trainings = start(machines, "digits_ddp.py", PAGE["job.toml"], ON_WORKER)
    assert [each.wait(150) for each in trainings] == [0, 0], [machine.words() for machine in machines]
    first, second = parameters(machines)
    assert first == second and len(first) == 200
    assert not list(Path(machines[1].folder).glob("kofn-job-*"))


@pytest.mark.long
def test_killed_worker_rejoins(machines: list[Machine]) -> None:
    together = ON_WORKER.splitlines(keepends=True)
    job, last = PAGE["job.toml with a group for each worker"], PAGE["a group for each worker"]
    trainings = start(machines, "digits_elastic.py", job, "".join(together[:-1]) + last)
    until(lambda: (machines[1].folder / "worker-0.jsonl").exists() and len(lines(machines[1], 0)) > 100, 100)
    os.kill(script_of(trainings[1]), signal.SIGKILL)
    assert [each.wait(150) for each in trainings] == [0, 0], [machine.words() for machine in machines]
    first, second = parameters(machines)
    assert len(first) == max(second) == 500
    assert set(first) - set(second), "the killed worker must have missed some iterations"
    assert all(first[iteration] == params for iteration, params in second.items())


def script_of(torchrun: "subprocess.Popen[bytes]") -> int:
    """Return the id of torchrun's child that trains."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return next(int(each) for each in children if b"train.py" in Path(f"/proc/{each}/cmdline").read_bytes())
