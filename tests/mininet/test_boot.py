"""The network is created, measured and driven by both drivers."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.mininet.outer_machine import FOLDER, PATIENCE_S, PYTHON, Machine, alive, wait_until

pytestmark = pytest.mark.root


def links(machine: Machine, namespace: str | None = None) -> dict[str, dict[str, Any]]:
    return {link["ifname"]: link for link in json.loads(machine.run("ip", "-json", "-d", "addr", inside=namespace))}


def test_default_network_is_as_documented(machine: Machine, driver: str) -> None:
    with machine.boot("--topology", str(FOLDER / "topology.json"), "--driver", driver) as boot:
        ready = boot.expect("ready")
        assert (ready["driver"], ready["mtu"], ready["management"]) == (driver, 9000, "172.30.255.1")
        assert ready["switches"] == [
            {"name": "s1", "interfaces": {str(port): f"s1-eth{port}" for port in (1, 2, 3, 4)}, "uplink": None}
        ]
        host = ready["hosts"]["h3"]
        assert {key: host[key] for key in ("ip", "mac", "management", "port", "interface", "mbps")} == {
            "ip": "10.0.0.3",
            "mac": "08:00:00:00:00:03",
            "management": "172.30.255.4",
            "port": 3,
            "interface": "s1-eth3",
            "mbps": 200.0,
        }
        found = links(machine, host["namespace"])
        assert set(found) == {"lo", "h3-eth0", "mgmt0"}
        data = found["h3-eth0"]
        assert (data["address"], data["mtu"], data["operstate"]) == ("08:00:00:00:00:03", 9000, "UP")
        assert [(entry["local"], entry["prefixlen"]) for entry in data["addr_info"]] == [("10.0.0.3", 24)]
        assert [entry["local"] for entry in found["mgmt0"]["addr_info"]] == ["172.30.255.4"]
        assert "UP" in found["lo"]["flags"]
        root = links(machine)
        assert (root["s1-eth3"]["mtu"], root["s1-eth3"]["addr_info"], root["s1-eth3"]["operstate"]) == (9000, [], "UP")
        assert not any(link.get("linkinfo", {}).get("info_kind") == "bridge" for link in root.values())


def test_neighbours_are_static(machine: Machine, driver: str) -> None:
    with machine.boot("--hosts", "3", "--driver", driver) as boot:
        namespace = boot.expect("ready")["hosts"]["h1"]["namespace"]
        entries = json.loads(machine.run("ip", "-json", "neigh", "show", "dev", "h1-eth0", inside=namespace))
        assert {(entry["dst"], entry["lladdr"], *entry["state"]) for entry in entries} == {
            ("10.0.0.2", "08:00:00:00:00:02", "PERMANENT"),
            ("10.0.0.3", "08:00:00:00:00:03", "PERMANENT"),
            ("10.0.0.254", "02:6b:6f:66:6e:fe", "PERMANENT"),
        }


def test_checks_pass_over_a_working_switch(machine: Machine, driver: str) -> None:
    with machine.boot("--hosts", "3", "--mbps", "100", "--driver", driver) as boot:
        machine.bridge(boot.expect("ready"))
        found = boot.good_checks()
        assert set(found) == {
            *(f"management h{n} -> root" for n in (1, 2, 3)),
            *(f"{what} h{a} -> h{b}" for what in ("ping", "rate") for a, b in ((1, 2), (2, 3), (3, 1))),
        }
        rate = found["rate h1 -> h2"]
        assert rate["configured_mbps"] == 100
        assert 60 <= rate["measured_mbps"] <= 105
        assert "configured 100 Mbit/s, measured" in rate["detail"]


def test_tree_is_created_shaped_and_removed(machine: Machine, driver: str) -> None:
    arguments = ("--hosts", "4", "--racks", "2", "--mbps", "100", "--uplink-mbps", "30", "--driver", driver)
    with machine.boot(*arguments) as boot:
        ready = boot.expect("ready")
        assert ready["switches"] == [
            {"name": "s0", "interfaces": {"1": "s0-eth1", "2": "s0-eth2"}, "uplink": None},
            {"name": "s1", "interfaces": {"1": "s1-eth1", "2": "s1-eth2", "3": "s1-eth3"}, "uplink": 3},
            {"name": "s2", "interfaces": {"1": "s2-eth1", "2": "s2-eth2", "3": "s2-eth3"}, "uplink": 3},
        ]
        host = ready["hosts"]["h3"]
        assert {key: host[key] for key in ("ip", "mac", "switch", "port", "interface", "mbps", "uplink_mbps")} == {
            "ip": "10.0.1.1",
            "mac": "08:00:00:00:01:01",
            "switch": "s2",
            "port": 1,
            "interface": "s2-eth1",
            "mbps": 100.0,
            "uplink_mbps": 30.0,
        }
        uplink = links(machine)["s1-eth3"]
        assert (uplink["mtu"], uplink["addr_info"], uplink["operstate"]) == (9000, [], "UP")
        machine.bridge(ready)
        found = boot.good_checks()
        assert found["rate h1 -> h2"]["configured_mbps"] == 100
        assert found["rate h2 -> h3"]["configured_mbps"] == 30
    assert machine.interfaces() <= {"lo", "bridge0", "bridge1", "bridge2"}


@pytest.mark.parametrize(("rate", "expected"), [("40mbit", "slow"), ("300mbit", "fast")])
def test_wrong_rate_is_detected(machine: Machine, driver: str, rate: str, expected: str) -> None:
    with machine.boot("--hosts", "2", "--mbps", "100", "--driver", driver) as boot:
        ready = boot.expect("ready")
        machine.bridge(ready)
        limit = ("tbf", "rate", rate, "burst", "75kb", "limit", "1mb")
        change = ("tc", "qdisc", "change", "dev", "{}", "root", "handle", "5:", *limit)
        machine.run(*(part.format("s1-eth2") for part in change))
        machine.run(*(part.format("h1-eth0") for part in change), inside=ready["hosts"]["h1"]["namespace"])
        good, found = boot.check()
        assert not good, found
        wrong = found["rate h1 -> h2"]
        assert not wrong["ok"]
        assert wrong["measured_mbps"] < 60 if expected == "slow" else wrong["measured_mbps"] > 105
        assert found["rate h2 -> h1"]["ok"]


def test_missing_limit_behind_a_correct_one_is_detected(machine: Machine) -> None:
    with machine.boot("--hosts", "2", "--mbps", "50", "--driver", "netns") as boot:
        ready = boot.expect("ready")
        machine.bridge(ready)
        machine.run("tc", "qdisc", "del", "dev", "h1-eth0", "root", inside=ready["hosts"]["h1"]["namespace"])
        _, found = boot.check()
        assert not found["rate h1 -> h2"]["ok"]
        assert found["rate h1 -> h2"]["sent_mbps"] > 100


def test_link_can_be_shaped_again(machine: Machine, driver: str) -> None:
    with machine.boot("--hosts", "2", "--driver", driver) as boot:
        machine.bridge(boot.expect("ready"))
        for rate in (50, 20, None):
            boot.send(do="shape", host="h1", mbps=rate)
            assert boot.expect("shaped")["mbps"] == rate
            assert boot.good_checks()["rate h1 -> h2"]["configured_mbps"] == rate


def test_switch_that_does_not_forward_is_detected(machine: Machine) -> None:
    with machine.boot("--hosts", "2", "--driver", "netns") as boot:
        boot.expect("ready")
        good, found = boot.check()
        assert not good, found
        assert "10.0.0.2 did not answer" in found["ping h1 -> h2"]["detail"]
        assert found["management h1 -> root"]["ok"]
        assert not any(name.startswith("rate") for name in found)


def test_blocked_management_network_is_detected(machine: Machine) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns") as boot:
        boot.expect("ready")
        machine.run("ip", "link", "set", "kofn-mgmt", "down")
        good, found = boot.check()
        assert not good, found
        assert "172.30.255.2 cannot connect to 172.30.255.1" in found["management h1 -> root"]["detail"]


def test_processes_run_in_the_given_node(machine: Machine, driver: str, tmp_path: Path) -> None:
    script = 'echo "$COLOUR $PWD"; cat /proc/net/dev; echo problem >&2; exit 3'
    with machine.boot("--hosts", "2", "--driver", driver) as boot:
        boot.expect("ready")
        for node, interface in (("h2", "h2-eth0"), ("s1", "s1-eth1"), ("root", "s1-eth2")):
            log = tmp_path / "logs" / node
            place = {"log": str(log), "cwd": str(tmp_path), "env": {"COLOUR": "red"}}
            boot.send(do="start", id=node, node=node, argv=["sh", "-c", script], **place)
            boot.expect("started")
            assert boot.event() == {"event": "exited", "id": node, "code": 3}
            assert f"red {tmp_path}\n" in log.read_text()
            assert interface in log.read_text()
            assert log.read_text().endswith("problem\n")


def test_process_is_signalled_and_its_id_is_free_again(machine: Machine) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns") as boot:
        boot.expect("ready")
        for _ in range(2):
            boot.send(do="start", id="sleeper", node="h1", argv=["sleep", "1000"])
            pid = boot.expect("started")["pid"]
            assert os.getsid(pid) == pid
            boot.send(do="signal", id="sleeper", signal="TERM")
            assert boot.event() == {"event": "exited", "id": "sleeper", "code": -signal.SIGTERM}
            boot.send(do="signal", id="sleeper", signal="TERM")  # a late signal is no error


def test_host_runs_the_commands_of_its_topology(machine: Machine, tmp_path: Path) -> None:
    document = json.loads((FOLDER / "topology.json").read_text())
    document["hosts"]["h2"]["commands"] = ["ip link add extra type bridge", "ip link set extra up"]
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(document))
    with machine.boot("--topology", str(path), "--driver", "netns") as boot:
        ready = boot.expect("ready")
        assert "extra" in links(machine, ready["hosts"]["h2"]["namespace"])
    document["hosts"]["h2"]["commands"] = ["echo no luck >&2; false"]
    path.write_text(json.dumps(document))
    with machine.boot("--topology", str(path), "--driver", "netns") as boot:
        assert "hosts.h2.commands: `echo no luck >&2; false` failed: no luck" in boot.refuses()
    assert machine.interfaces() == {"lo"}


def test_hosts_of_different_subnets_reach_each_other(machine: Machine, tmp_path: Path) -> None:
    document = json.loads((FOLDER / "topology.json").read_text())
    for rank, entry in enumerate(document["hosts"].values(), start=1):
        entry["ip"] = f"10.0.{rank}.1/24"
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(document))
    with machine.boot("--topology", str(path), "--driver", "netns") as boot:
        machine.bridge(boot.expect("ready"))
        _, found = boot.check()
        assert all(check["ok"] for name, check in found.items() if name.startswith("ping")), found


def test_auto_names_the_driver_and_the_reason(machine: Machine) -> None:
    with machine.boot("--hosts", "1") as boot:
        ready = boot.expect("ready")
        assert ready["driver"] in ("mininet", "netns")
        assert "mininet" in ready["reason"]


def test_topology_can_be_written_without_a_network(tmp_path: Path) -> None:
    path = tmp_path / "star.json"
    argv = [PYTHON, "-B", str(FOLDER / "boot.py"), "--hosts", "4", "--mbps", "200", "--write-topology", str(path)]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == ""
    assert json.loads(path.read_text()) == json.loads((FOLDER / "topology.json").read_text().replace("200]", "200.0]"))
    failed = subprocess.run([*argv, "--hosts", "65"], check=False, capture_output=True, text=True)
    assert (failed.returncode, failed.stderr) == (2, "boot.py: --hosts must be 1 to 64, got 65\n")


@pytest.mark.long
@pytest.mark.parametrize("hosts", [64])
def test_largest_network_is_created(machine: Machine, driver: str, hosts: int) -> None:
    with machine.boot("--hosts", str(hosts), "--mbps", "100", "--driver", driver) as boot:
        assert len(boot.expect("ready")["hosts"]) == hosts
        assert len(machine.interfaces()) == hosts + 2
    assert machine.interfaces() == {"lo"}


def test_end_of_stdin_ends_everything(machine: Machine, driver: str) -> None:
    with machine.boot("--hosts", "2", "--driver", driver) as boot:
        boot.expect("ready")
        boot.send(do="start", id="sleeper", node="h1", argv=["sh", "-c", "sleep 1000 & wait"])
        pid = boot.expect("started")["pid"]
        boot.process.stdin.close()
        assert boot.expect("exited") == {"event": "exited", "id": "sleeper", "code": -signal.SIGTERM}
        boot.expect("stopped")
        assert boot.process.wait(PATIENCE_S) == 0
        assert not alive(pid)
    assert machine.interfaces() == {"lo"}
    assert not list(machine.state.glob("*.json"))


def test_stdin_need_not_be_a_pipe(machine: Machine) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns", stdin=subprocess.DEVNULL) as boot:
        boot.expect("ready")
        boot.expect("stopped")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, "stop"])
def test_network_can_be_stopped(machine: Machine, how: signal.Signals | str) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns") as boot:
        boot.expect("ready")
        boot.send(do="stop") if isinstance(how, str) else boot.process.send_signal(how)
        boot.expect("stopped")
        assert boot.process.wait(PATIENCE_S) == 0


def test_process_that_ignores_term_is_killed(machine: Machine) -> None:
    with machine.boot("--hosts", "1", "--driver", "netns") as boot:
        boot.expect("ready")
        boot.send(do="start", id="deaf", node="h1", argv=[PYTHON, "-c", DEAF])
        pid = boot.expect("started")["pid"]
        wait_until(lambda: ignores(pid, signal.SIGTERM), "it ignores TERM")
        boot.send(do="stop")
        assert boot.expect("exited")["code"] == -signal.SIGKILL
        boot.expect("stopped")


DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return bool(int(mask, 16) >> (number - 1) & 1)
