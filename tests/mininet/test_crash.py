"""Remains of a crash and refused starts: records, kill -9, --clean, preconditions."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mininet.outer_machine import PATIENCE_S, Machine, alive, wait_until

pytestmark = pytest.mark.root

NOBODY_WHO_MAY_READ_THIS_CHECKOUT = ("unshare", "--user")  # wherever the checkout is, in /root, too


def namespaces() -> set[str]:
    """Return the network namespaces of all processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(path))
        except OSError:
            continue  # the process has just ended
    return found


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


def test_kill_9_leaves_nothing(machine: Machine, driver: str) -> None:
    with machine.boot("--hosts", "3", "--mbps", "100", "--driver", driver) as boot:
        ready = boot.expect("ready")
        for node in ("h1", "h2", "root"):
            boot.send(do="start", id=node, node=node, argv=["sleep", "1000"])
            boot.expect("started")
        inside = [f"net:[{os.stat(host['namespace']).st_ino}]" for host in ready["hosts"].values()]
        family = descendants(boot.pid)
        assert len(family) >= 3
        boot.process.kill()
        boot.process.wait()
        wait_until(lambda: not any(map(alive, family)), "all processes are gone")
        wait_until(lambda: machine.interfaces() == {"lo"}, "all interfaces are gone")
        wait_until(lambda: namespaces().isdisjoint(inside), "no namespace is left: another may have a number again")


def test_next_boot_removes_a_dead_record(machine: Machine, driver: str) -> None:
    with machine.boot("--hosts", "2", "--driver", driver) as boot:
        boot.expect("ready")
        boot.process.kill()
    with machine.boot("--hosts", "2", "--driver", driver) as boot:
        boot.expect("ready")
        assert [path.stem for path in machine.state.glob("*.json")] == [str(boot.pid)]


@pytest.mark.parametrize("racks", ["1", "2"])
def test_clean_removes_the_remains_of_a_crash(machine: Machine, racks: str) -> None:
    with machine.boot("--hosts", "2", "--racks", racks, "--driver", "netns") as boot:
        boot.expect("ready")
        boot.process.kill()
    for _ in range(2):
        result = machine.clean()
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert machine.interfaces() == {"lo"}
        assert not list(machine.state.glob("*.json"))


def test_clean_leaves_an_active_network(machine: Machine) -> None:
    with machine.boot("--hosts", "2", "--driver", "netns") as boot:
        boot.expect("ready")
        result = machine.clean()
        assert result.returncode == 2
        assert result.stderr == f"boot.py: another kofn network is running (pid {boot.pid}): kill {boot.pid} ends it\n"
        boot.send(do="stop")
        boot.expect("stopped")


def test_clean_removes_only_recorded_objects(machine: Machine) -> None:
    """A reused pid or name belongs to another program; so does the same name in another namespace."""
    machine.run("ip", "link", "add", "other", "type", "bridge")
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        machine.state.mkdir()
        record = {"pid": stranger.pid, "started": 1, "stopping": False, "processes": {str(stranger.pid): 1}}
        inode = int(machine.run("stat", "-Lc", "%i", "/proc/self/ns/net"))
        for number, (namespace, index) in enumerate([(inode, 999), (1, None)]):
            content = {**record, "namespace": namespace, "interfaces": {"other": index, "gone": 5}}
            (machine.state / f"{number}.json").write_text(json.dumps(content))
        assert machine.clean().returncode == 0
        assert alive(stranger.pid)
        stranger.kill()
    assert machine.interfaces() == {"lo", "other"}
    assert not list(machine.state.glob("*.json"))


def test_clean_ends_recorded_processes(machine: Machine) -> None:
    """The process of a network has outlived it."""
    machine.state.mkdir()
    with subprocess.Popen(["sleep", "1000"]) as left:
        started = int(Path(f"/proc/{left.pid}/stat").read_text().rpartition(")")[2].split()[19])
        content = {"pid": 1, "started": 7, "namespace": 0, "stopping": False, "interfaces": {}}
        content["processes"] = {str(left.pid): started}
        (machine.state / "1.json").write_text(json.dumps(content))
        assert machine.clean().returncode == 0
        assert left.wait(PATIENCE_S) == -signal.SIGTERM


def test_unreadable_record_is_named(machine: Machine) -> None:
    machine.state.mkdir()
    (machine.state / "7.json").write_text("{}")
    result = machine.clean()
    assert result.returncode == 2
    assert "7.json is not a record of kofn" in result.stderr


def test_second_network_is_refused(machine: Machine) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns") as first:
        first.expect("ready")
        with machine.boot("--hosts", "1", "--driver", "netns") as second:
            assert f"another kofn network is running (pid {first.pid})" in second.refuses()
        first.send(do="stop")
        first.expect("stopped")


def test_stopping_network_is_awaited(machine: Machine) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns") as first:
        first.expect("ready")
        first.send(
            do="start", id="slow", node="h1", argv=["sh", "-c", "trap 'sleep 1; exit' TERM; echo; sleep 60 & wait"]
        )
        first.expect("started")
        first.send(do="stop")
        wait_until(lambda: '"stopping": true' in next(machine.state.glob("*.json")).read_text(), "it is stopping")
        with machine.boot("--hosts", "1", "--driver", "netns") as second:
            second.expect("ready")
            assert first.process.wait(PATIENCE_S) == 0


def test_interface_of_another_program_is_left_alone(machine: Machine, driver: str) -> None:
    machine.run("ip", "link", "add", "s1-eth2", "type", "bridge")
    with machine.boot("--hosts", "2", "--driver", driver) as boot:
        assert boot.expect("ready")["switches"][0]["interfaces"] == {"1": "s1-eth1_2", "2": "s1-eth2_2"}
    assert machine.interfaces() == {"lo", "s1-eth2"}


def test_networks_of_two_state_folders_run_side_by_side(machine: Machine, driver: str, tmp_path: Path) -> None:
    with machine.boot("--hosts", "2", "--driver", driver) as one:
        first = one.expect("ready")
        machine.state = tmp_path / "other"
        with machine.boot("--hosts", "2", "--driver", driver, "--management", "192.168.77.0/28") as two:
            second = two.expect("ready")
            assert first["switches"][0]["interfaces"] == {"1": "s1-eth1", "2": "s1-eth2"}
            assert second["switches"][0]["interfaces"] == {"1": "s1-eth1_2", "2": "s1-eth2_2"}
            assert (first["management_interface"], second["management_interface"]) == ("kofn-mgmt", "kofn-mgmt_2")
            for there in (first, second):
                address = there["hosts"]["h2"]["management"]
                said = machine.run("bash", "-c", f"timeout 5 bash -c 'echo > /dev/tcp/{address}/9' 2>&1 || true")
                assert "Connection refused" in said, "the host must answer, without a listener"
        assert machine.interfaces() == {"lo", "s1-eth1", "s1-eth2", "kofn-mgmt"}, (
            "only the run's own interfaces may be removed"
        )


def test_machine_without_room_is_refused_before_anything_is_created(machine: Machine) -> None:
    with machine.boot("--check-machine", "--hosts", "1") as boot:
        assert boot.process.wait(PATIENCE_S) == 0
    machine.run("ip", "link", "add", "lan", "type", "bridge")
    machine.run("ip", "link", "set", "lan", "up")
    machine.run("ip", "route", "add", "172.16.0.0/12", "dev", "lan")
    with machine.boot("--check-machine", "--hosts", "1") as boot:
        assert boot.process.wait(PATIENCE_S) == 2
    assert machine.interfaces() == {"lo", "lan"}
    assert not list(machine.state.glob("*.json"))


@pytest.mark.parametrize("route", ["172.30.255.128/25", "172.16.0.0/12", "172.30.255.7"])
def test_management_network_in_use_is_refused(machine: Machine, route: str) -> None:
    machine.run("ip", "link", "add", "lan", "type", "bridge")
    machine.run("ip", "link", "set", "lan", "up")
    machine.run("ip", "route", "add", route, "dev", "lan")
    with machine.boot("--hosts", "1", "--driver", "netns") as boot:
        assert (
            f"network.management must not overlap a route, got 172.30.255.0/24 and the route {route} dev lan"
            in boot.refuses()
        )
    assert machine.interfaces() == {"lo", "lan"}
    with machine.boot("--hosts", "1", "--driver", "netns", "--management", "192.168.77.0/28") as boot:
        assert boot.expect("ready")["hosts"]["h1"]["management"] == "192.168.77.2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hosts", "65"), "--hosts must be 1 to 64, got 65"),
        (("--hosts", "2", "--mbps", "0"), "--mbps must be 0.1 to 100000 Mbit/s"),
        (("--hosts", "2", "--mtu", "100"), "--mtu must be 1280 to 65535, got 100"),
        (("--hosts", "2", "--management", "172.30.255.1/24"), "--management is '172.30.255.1/24'"),
        (
            ("--hosts", "8", "--management", "172.30.255.0/29"),
            "network.management must have 11 addresses or more for 8 hosts",
        ),
        (
            ("--hosts", "2", "--management", "10.0.0.0/16"),
            "network.management must not overlap a host's network, got 10.0.0.0/16 and h1's 10.0.0.1",
        ),
        (("--topology", "/nowhere.json"), "/nowhere.json: No such file or directory"),
        (("--topology", "/nowhere.json", "--mbps", "5"), "--mbps and --uplink-mbps must come with --hosts"),
    ],
)
def test_bad_command_line_is_refused(machine: Machine, arguments: tuple[str, ...], message: str) -> None:
    with machine.boot(*arguments) as boot:
        assert message in boot.refuses()
    assert machine.interfaces() == {"lo"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("rubbish", "is not JSON"),
        ({"do": "dance"}, "do must be one of start, signal, limit, check, shape, stop"),
        ({"do": "start", "id": "a", "node": "h1"}, "command start must have id, node, argv, got no argv"),
        ({"do": "start", "id": "a", "node": "h1", "argv": "ls"}, "got argv = 'ls'"),
        (
            {"do": "start", "id": "a", "node": "h1", "argv": [1]},
            "command start: argv must be strings (argv: one or more), got [1]",
        ),
        (
            {"do": "start", "id": "a", "node": "h1", "argv": []},
            "command start: argv must be strings (argv: one or more), got []",
        ),
        (
            {"do": "start", "id": "a", "node": "h9", "argv": ["ls"]},
            "the node must be one of root, s1, h1, h2, got 'h9'",
        ),
        ({"do": "start", "id": "a", "node": "h1", "argv": ["/no/ls"]}, "process 'a': /no/ls: No such file"),
        ({"do": "signal", "id": "a", "signal": "TERM"}, "process 'a' was never started"),
        ({"do": "signal", "id": "a", "signal": "BOO"}, "signal 'BOO' of process 'a' is unknown"),
        ({"do": "shape", "host": "h7", "mbps": 1}, "the host must be one of h1, h2, got 'h7'"),
        ({"do": "shape", "host": "h1", "mbps": -1}, "shape: mbps must be 0.1 to 100000 Mbit/s"),
        ({"do": "stop", "now": True}, "command stop: fields must be none, got now = True"),
    ],
)
def test_bad_command_ends_the_network(machine: Machine, command: str | dict[str, object], message: str) -> None:
    with machine.boot("--hosts", "2", "--driver", "netns") as boot:
        boot.expect("ready")
        if isinstance(command, str):
            boot.process.stdin.write(command.encode() + b"\n")
        else:
            boot.send(**command)
        assert message in boot.refuses()
    assert machine.interfaces() == {"lo"}


def test_root_is_needed(machine: Machine) -> None:
    with machine.boot("--hosts", "1", before=NOBODY_WHO_MAY_READ_THIS_CHECKOUT) as boot:
        assert boot.refuses().startswith("not root")


def test_missing_tool_is_named_with_its_package(machine: Machine) -> None:
    with machine.boot("--hosts", "1", before=("env", "PATH=/nowhere")) as boot:
        assert boot.refuses() == "the command ip is missing: install the apt package iproute2"


def test_missing_mininet_is_named_with_its_package(machine: Machine, tmp_path: Path) -> None:
    for tool in ("ip", "tc"):
        (tmp_path / tool).symlink_to(f"/usr/sbin/{tool}")
    before = ("env", f"PATH={tmp_path}")
    with machine.boot("--hosts", "1", "--driver", "mininet", before=before) as boot:
        assert "apt package mininet" in boot.refuses()
    with machine.boot("--hosts", "1", before=before) as boot:
        ready = boot.expect("ready")
        assert (ready["driver"], "apt package mininet" in ready["reason"]) == ("netns", True)
