"""A job on three machines that share nothing (machines.py), started with the documented commands."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from kofn.cli.main import main
from kofn_common.rpc.certificates import make_certificates, make_p4runtime_certificates
from tests.run.machines import (
    CONTROL,
    CONTROLLER,
    FIRST,
    JOB,
    LAST,
    SWITCH,
    Machine,
    accuracy,
    behind_a_bridge,
    ip,
    lines,
    machines,
    share_out,
    worker,
)
from tests.waiting import until

__all__ = ["machines"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces"),
    pytest.mark.timeout(180),
]


def test_three_machines_train_to_the_target(machines: list[Machine], tmp_path: Path) -> None:
    """The workers start first, then the controller, then the switch; P4Runtime uses mutual TLS."""
    share_out(tmp_path, machines)
    make_p4runtime_certificates(tmp_path / "p4runtime")
    for name in ("server", "client"):
        (machines[0].folder / name).mkdir()
        for file in ("ca.pem", f"{name}.pem", f"{name}.key"):
            shutil.copy(tmp_path / "p4runtime" / file, machines[0].folder / name)
    workers = [worker(machines[1 + rank // 2], rank) for rank in range(4)]
    place = ("--p4runtime", f"{SWITCH}:50051")
    machines[0].start("controller", "job.toml", "--certs", "certs", *place, "--p4runtime-certs", "client")
    time.sleep(1)
    machines[0].start("switch", "--tunnels", "4", *place, "--certs", "server")
    codes = [process.wait(120) for process in workers]
    assert codes == [0] * 4, [machine.words() for machine in machines]
    assert min(accuracy(machines[1 + rank // 2], rank) for rank in range(4)) >= 0.9


@pytest.mark.long
def test_tree_of_five_machines_trains_to_the_target(tmp_path: Path) -> None:
    """The root is on the controller's machine, each leaf on its own."""
    with behind_a_bridge(tmp_path, 5) as machines:
        root, *leaves, first, last = machines
        job = JOB.replace("workers = 4", "workers = 4, racks = 2")
        share_out(tmp_path, machines, own=(CONTROL, [], [], FIRST, LAST), job=job)
        workers = [worker((first, last)[rank // 2], rank, leaves[rank // 2].address) for rank in range(4)]
        addresses = ["127.0.0.1:50051", *(f"{leaf.address}:50051" for leaf in leaves)]
        given = (part for address in addresses for part in ("--p4runtime", address))
        root.start("controller", "job.toml", "--certs", "certs", *given)
        root.start("switch", "--leaves", "2")
        for rack, leaf in enumerate(leaves):
            place = ("--root", root.address, "--p4runtime", f"{leaf.address}:50051")
            leaf.start("switch", "--rack", str(rack), "--tunnels", "2", *place)
        assert [process.wait(120) for process in workers] == [0] * 4, [machine.words() for machine in machines]
        assert min(accuracy((first, last)[rank // 2], rank) for rank in range(4)) >= 0.9


def iterations(machine: Machine, rank: int) -> int:
    path = machine.folder / f"worker-{rank}.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def again(machine: Machine, process: "subprocess.Popen[bytes]", start: Callable[[], "subprocess.Popen[bytes]"]) -> Any:
    """Kill a process, start it with the same arguments and return the new one."""
    process.kill()
    process.wait()
    machine.running.remove(process)
    return start()


@pytest.mark.long
def test_each_process_may_be_killed_and_restarted(machines: list[Machine], tmp_path: Path) -> None:
    long_job = JOB.replace("target = 0.9, max_iterations = 400", "target = 2.0, max_iterations = 1200")
    share_out(tmp_path, machines)
    for machine in machines:
        (machine.folder / "job.toml").write_text(long_job)

    def start_switch() -> "subprocess.Popen[bytes]":
        return machines[0].start("switch", "--tunnels", "4")

    def start_controller() -> "subprocess.Popen[bytes]":
        return machines[0].start("controller", "job.toml", "--certs", "certs")

    switch, controller = start_switch(), start_controller()
    workers = [worker(machines[1 + rank // 2], rank) for rank in range(4)]
    until(lambda: iterations(machines[1], 0) > 100)
    workers[3] = again(machines[2], workers[3], lambda: worker(machines[2], 3))
    until(lambda: iterations(machines[1], 0) > 300)
    again(machines[0], controller, start_controller)
    until(lambda: iterations(machines[1], 0) > 500)
    again(machines[0], switch, start_switch)
    assert [process.wait(120) for process in workers] == [0] * 4, [machine.words() for machine in machines]
    assert min(iterations(machines[1 + rank // 2], rank) for rank in range(3)) >= 1200
    params = [
        {line["iteration"]: line["params"] for line in map(msgspec.json.decode, lines(machines[1 + rank // 2], rank))}
        for rank in range(4)
    ]
    assert all(
        each.get(iteration, params[0][iteration]) == params[0][iteration] for each in params for iteration in params[0]
    )


@pytest.mark.long
def test_certificate_of_another_authority_is_named(machines: list[Machine], tmp_path: Path) -> None:
    share_out(tmp_path, machines)
    shutil.rmtree(machines[1].folder / "certs")
    make_certificates(machines[1].folder / "certs", {1: 4})
    machines[0].start("switch", "--tunnels", "4")
    machines[0].start("controller", "job.toml", "--certs", "certs")
    assert worker(machines[1], 0).wait(60) == 1
    assert "the controller at 192.0.2.1:50052 refused" in machines[1].words()


def test_link_with_too_small_an_mtu_is_named(machines: list[Machine], tmp_path: Path) -> None:
    share_out(tmp_path, machines)
    ip("-n", machines[1].network, "link", "set", "eth0", "mtu", "1000")
    assert worker(machines[1], 0).wait(60) == 1
    words = "kofn-w0 has MTU 950, job.words = 4 needs 1120: job.words up to 3 fit"
    assert words in machines[1].words().replace("\n", " ")


def test_unknown_switch_name_is_named(machines: list[Machine], tmp_path: Path) -> None:
    share_out(tmp_path, machines)
    process = machines[1].start(
        *("worker", "job.toml", "--rank", "0", "--switch", "nowhere.invalid", "--controller", CONTROLLER)
    )
    assert process.wait(60) == 1 and "--switch nowhere.invalid: " in machines[1].words()


def test_workers_certificate_does_not_program_the_switch(machines: list[Machine], tmp_path: Path) -> None:
    """Without a certificate it does not either: the switch has no program."""
    share_out(tmp_path, machines)
    make_p4runtime_certificates(tmp_path / "p4runtime")
    shutil.copytree(tmp_path / "p4runtime", machines[0].folder / "server")
    false = machines[0].folder / "client"
    shutil.copytree(tmp_path / "p4runtime", false)
    for end in ("pem", "key"):
        shutil.copy(tmp_path / "certs" / f"job-1-worker-0.{end}", false / f"client.{end}")
    machines[0].start("switch", "--tunnels", "4", "--certs", "server")
    for certs in (("--p4runtime-certs", "client"), ()):
        assert machines[0].start("controller", "job.toml", "--wait", "3", *certs).wait(60) == 2
    assert machines[0].words().count("no switch at 127.0.0.1:50051 after 3 s") == 2


@pytest.mark.long
def test_packets_of_eight_kilobytes_are_used_where_the_network_carries_them(
    machines: list[Machine], tmp_path: Path
) -> None:
    share_out(tmp_path, machines)
    for number, machine in enumerate(machines, 1):
        (machine.folder / "job.toml").write_text(JOB.replace("workers = 4", "workers = 4, words = 32"))
        ip("-n", machine.network, "link", "set", "eth0", "mtu", "9000")
        ip("-n", f"{machine.network.rpartition('-')[0]}-lan", "link", "set", f"p{number}", "mtu", "9000")
    machines[0].start("switch", "--tunnels", "4")
    machines[0].start("controller", "job.toml", "--certs", "certs")
    workers = [worker(machines[1 + rank // 2], rank) for rank in range(4)]
    assert [process.wait(120) for process in workers] == [0] * 4, [machine.words() for machine in machines]


@pytest.mark.parametrize(("options", "words"), [
    (["--leaves", "2", "--tunnels", "4"], "exactly one of --interface NAME"),
    (["--tunnels", "4", "--rack", "0"], "--root HOST must be given with --rack and --tunnels"),
    (["--tunnels", "4", "--root", "192.0.2.1"], "--root HOST must be given with --rack and --tunnels"),
    (["--leaves", "2", "--rack", "0"], "--leaves is for a root and --rack for a leaf"),
])  # fmt: skip
def test_options_of_a_switch_that_contradict_each_other_are_refused(options: list[str], words: str) -> None:
    refused = CliRunner().invoke(main, ["switch", *options])
    assert (refused.exit_code, words in refused.output) == (2, True)
