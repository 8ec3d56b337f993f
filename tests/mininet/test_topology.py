"""topology.json: valid files, and the errors of invalid ones."""

import copy
import json
from pathlib import Path

import pytest
from topology import SERVICE_IP, TopologyError, load, parse, star

from kofn.host.wire.packet import SERVICE

DEFAULT = json.loads((Path(__file__).resolve().parents[2] / "mininet" / "topology.json").read_text())


def test_default_is_a_star_of_four() -> None:
    assert parse(DEFAULT) == star(4, 200)


@pytest.mark.parametrize(("hosts", "mbps"), [(1, None), (3, 0.5), (64, 1000)])
def test_star_is_written_and_read_back(tmp_path: Path, hosts: int, mbps: float | None) -> None:
    path = tmp_path / "topology.json"
    path.write_text(star(hosts, mbps).to_json())
    assert load(path) == star(hosts, mbps)


def test_ports_need_not_follow_ranks() -> None:
    document = copy.deepcopy(DEFAULT)
    document["links"] = [
        ["s1-p9", "h4"],
        ["h3", "s1-p1", "0"],
        ["s1-p64", "h1", "0ms", 0.5],
        ["h2", "s1-p2", None, None],
    ]
    made = parse(document)
    assert [(host.name, host.port, host.mbps) for host in made.hosts] == [
        ("h1", 64, 0.5),
        ("h2", 2, None),
        ("h3", 1, None),
        ("h4", 9, None),
    ]
    assert made.switch_interface(made.hosts[0]) == "s1-eth64"


def test_mac_follows_from_the_rank() -> None:
    document = copy.deepcopy(DEFAULT)
    del document["hosts"]["h3"]["mac"]
    assert parse(document).hosts[2].mac == "08:00:00:00:00:03"


BAD = {
    "two switches": ({"switches": {"s1": {}, "s2": {}}}, "switches must have exactly one switch, got 2"),
    "no switch": ({"switches": {}}, "switches must have exactly one switch, got 0"),
    "switch with a program": (
        {"switches": {"s1": {"runtime_json": "x"}}},
        "keys of switches.s1 must be none, got 'runtime_json'",
    ),
    "unknown key": ({"routers": {}}, "keys of the topology must be hosts, switches, links, got 'routers'"),
    "no hosts": ({"hosts": {}}, "hosts must have 1 to 64 hosts, got 0"),
    "many hosts": ({"hosts": {f"h{n}": {} for n in range(65)}}, "hosts must have 1 to 64 hosts, got 65"),
    "hosts as a list": ({"hosts": ["h1"]}, "hosts must have 1 to 64 hosts, got ['h1']"),
    "host named root": ({"hosts.root": {}}, "hosts has 'root'"),
    "host named as the switch": ({"hosts.s1": {}}, "hosts has 's1', which is the switch"),
    "long name": ({"hosts.averylongname": {}}, "hosts has 'averylongname'"),
    "host's unknown key": ({"hosts.h1.gateway": "x"}, "keys of hosts.h1 must be ip, mac, commands, got 'gateway'"),
    "commands": ({"hosts.h1.commands": "reboot"}, "hosts.h1.commands is 'reboot'"),
    "no address": ({"hosts.h2.ip": None}, "hosts.h2.ip is None: an IPv4 address with its prefix"),
    "no prefix": ({"hosts.h2.ip": "10.0.0.2"}, "hosts.h2.ip is '10.0.0.2': an IPv4 address with its prefix"),
    "bad address": ({"hosts.h2.ip": "10.0.0.256/24"}, "hosts.h2.ip is '10.0.0.256/24'"),
    "broadcast": ({"hosts.h2.ip": "10.0.0.255/24"}, "hosts.h2.ip is '10.0.0.255/24'"),
    "multicast": ({"hosts.h2.ip": "224.0.0.1/24"}, "hosts.h2.ip is '224.0.0.1/24'"),
    "service address": ({"hosts.h2.ip": "10.0.0.254/24"}, "hosts.h2.ip 10.0.0.254 is taken by the aggregation service"),
    "address twice": ({"hosts.h2.ip": "10.0.0.1/8"}, "hosts.h2.ip 10.0.0.1 is taken by h1"),
    "bad mac": ({"hosts.h2.mac": "8:0:0:0:0:1"}, "hosts.h2.mac is '8:0:0:0:0:1'"),
    "multicast mac": ({"hosts.h2.mac": "01:00:5e:00:00:01"}, "hosts.h2.mac is '01:00:5e:00:00:01'"),
    "service mac": ({"hosts.h2.mac": "02:6B:6F:66:6E:FE"}, "taken by the aggregation service"),
    "mac twice": ({"hosts.h2.mac": "08:00:00:00:00:01"}, "hosts.h2.mac 08:00:00:00:00:01 is taken by h1"),
    "links as a table": ({"links": {}}, "links is {}"),
    "host without a link": ({"links.3": None}, "hosts.h4 has no link: one to s1 is needed"),
    "unknown host": ({"links.0": ["h9", "s1-p1"]}, "links[0] has 'h9': a host is needed there: h1, h2, h3, h4"),
    "unknown switch": ({"links.0": ["h1", "s2-p1"]}, "links[0] has 's2-p1'"),
    "host to host": ({"links.0": ["h1", "h2"]}, "links[0] has 'h1': one end must be a port of the switch"),
    "switch to switch": ({"links.0": ["s1-p1", "s1-p2"]}, "links[0] has 's1-p1': a host is needed"),
    "port 0": ({"links.0": ["h1", "s1-p0"]}, "links[0] must have a port 1 to 64 of s1, got '0'"),
    "port 65": ({"links.0": ["s1-p65", "h1"]}, "links[0] must have a port 1 to 64 of s1, got '65'"),
    "no port": ({"links.0": ["h1", "s1-p"]}, "links[0] must have a port 1 to 64 of s1, got ''"),
    "port twice": ({"links.1": ["h2", "s1-p1"]}, "a port must have one link, got two on s1-p1: links[1] (h2) and h1"),
    "second link": ({"links.1": ["h1", "s1-p2"]}, "a host must have one link, got a second of h1 in links[1]"),
    "short link": ({"links.0": ["h1"]}, 'links[0] must be ["host", "s1-pN", latency, Mbit/s], got [\'h1\']'),
    "latency": ({"links.0": ["h1", "s1-p1", "5ms", 10]}, "links[0] (h1) must have latency 0, got '5ms'"),
    "rate 0": ({"links.0": ["h1", "s1-p1", 0, 0]}, "links[0] bandwidth is 0: 0.1 to 100000 Mbit/s"),
    "rate true": ({"links.0": ["h1", "s1-p1", 0, True]}, "links[0] bandwidth is True"),
    "rate text": ({"links.0": ["h1", "s1-p1", 0, "fast"]}, "links[0] bandwidth is 'fast'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_topology_is_refused_by_field(change: dict[str, object], message: str) -> None:
    document = copy.deepcopy(DEFAULT)
    for path, value in change.items():
        *parents, last = path.split(".")
        place = document
        for name in parents:
            place = place[name]
        if isinstance(place, list) and value is None:
            del place[int(last)]
        else:
            place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(TopologyError) as caught:
        parse(document)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the topology is []: a table is needed"),
        ("{}", "hosts is missing"),
        ('{"hosts": {"h1": {}, "h1": {}}}', "a table must name 'h1' once, got two"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(TopologyError, match=r"mine\.json: ") as caught:
        load(path)
    assert message in str(caught.value)


def test_missing_topology_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file"):
        load(tmp_path / "none.json")


@pytest.mark.parametrize(("hosts", "mbps"), [(0, 1), (65, 1), (2, 0), (2, float("nan"))])
def test_bad_star_is_refused(hosts: int, mbps: float) -> None:
    with pytest.raises(TopologyError, match=r"must be|Mbit/s"):
        star(hosts, mbps)


def test_hosts_send_to_the_switchs_address() -> None:
    assert str(SERVICE_IP) == SERVICE
