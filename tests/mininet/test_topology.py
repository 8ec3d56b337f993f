"""topology.json: valid files, and the errors of invalid ones."""

import copy
import json
from pathlib import Path

import pytest
from links import PORTS_MAX, TopologyError
from topology import RACKS_MAX, SERVICE_IP, load, parse, star, tree

from kofn_common.wire import sizes
from kofn_common.wire.packet import SERVICE

DEFAULT = json.loads((Path(__file__).resolve().parents[2] / "mininet" / "topology.json").read_text())


def test_network_has_the_limits_of_the_packet() -> None:
    """The network's scripts import nothing of kofn."""
    assert (PORTS_MAX, RACKS_MAX) == (sizes.RACK_WORKERS_MAX, sizes.RACKS_MAX)


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
    assert [(host.name, host.place.port, host.mbps) for host in made.hosts] == [
        ("h1", 64, 0.5),
        ("h2", 2, None),
        ("h3", 1, None),
        ("h4", 9, None),
    ]
    assert made.interface(made.hosts[0].place) == "s1-eth64"


def test_mac_follows_from_the_rank() -> None:
    document = copy.deepcopy(DEFAULT)
    del document["hosts"]["h3"]["mac"]
    assert parse(document).hosts[2].mac == "08:00:00:00:00:03"


@pytest.mark.parametrize(("hosts", "racks", "rates"), [(4, 2, (200, None)), (1024, 16, (1000, 4000))])
def test_tree_is_written_and_read_back(tmp_path: Path, hosts: int, racks: int, rates: tuple[float, ...]) -> None:
    path, made = tmp_path / "topology.json", tree(hosts, racks, *rates)
    path.write_text(made.to_json())
    assert load(path) == made
    assert made.switches == ("s0", *(f"s{rack}" for rack in range(1, racks + 1)))
    assert made.ports("s0") == {rack: f"s0-eth{rack}" for rack in range(1, racks + 1)}


def test_root_and_order_of_leaves_follow_from_the_links() -> None:
    document = json.loads(tree(4, 2, 100, 50).to_json())
    document["switches"] = {"a": {}, "b": {}, "top": {}}
    document["links"] = [
        ["top-p7", "a-p9", 0, 20],
        *(["h1", "b-p1"], ["h2", "b-p2"], ["a-p1", "h3"], ["a-p2", "h4"]),
        ["b-p65", "top-p1"],
    ]
    made = parse(document)
    assert made.switches == ("top", "b", "a")
    assert [(str(link.leaf), str(link.root), link.mbps) for link in made.uplinks] == [
        ("b-p65", "top-p1", None),
        ("a-p9", "top-p7", 20),
    ]


BAD_LINKS = {
    "uneven": (["h2", "s2-p4"], "equally many of each, got 1 of s1, 3 of s2"),
    "port twice": (["h2", "s1-p3"], "a port must have one link, got two on s1-p3: links[4] (s0-p1) and h2"),
    "second uplink": (["s1-p9", "s2-p9"], "a link between switches must be a leaf's only one to the root, got s1-p9"),
    "port of an uplink": (["s0-p66", "s1-p4"], "links[1] must have a port 1 to 65 of s0, got '66'"),
    "host of the root": (["h2", "s0-p4"], "equally many of each, got 1 of s1, 1 of s0, 2 of s2"),
}


@pytest.mark.parametrize(("link", "message"), BAD_LINKS.values(), ids=BAD_LINKS.keys())
def test_bad_tree_is_refused(link: list[str], message: str) -> None:
    document = json.loads(tree(4, 2, None, None).to_json())
    document["links"][1] = link
    if not link[0].startswith("h"):
        document["links"].append(["h2", "s1-p2"])
    with pytest.raises(TopologyError) as caught:
        parse(document)
    assert message in str(caught.value)


def test_leaf_without_an_uplink_is_refused() -> None:
    document = json.loads(tree(4, 2, None, None).to_json())
    del document["links"][-1]
    with pytest.raises(TopologyError, match="switch s2 must have a link to the root, got none"):
        parse(document)


@pytest.mark.parametrize(("hosts", "racks"), [(4, 17), (5, 2), (130, 2), (0, 2)])
def test_bad_size_of_a_tree_is_refused(hosts: int, racks: int) -> None:
    with pytest.raises(TopologyError, match="--racks must be 2 to 16, and --hosts 1 to 64 for each of them"):
        tree(hosts, racks, None, None)


BAD = {
    "two switches": (
        {"switches": {"s1": {}, "s2": {}}},
        "switches must have exactly one switch, or the root and 2 to 16 leaves of a tree, got 2",
    ),
    "no switch": ({"switches": {}}, "switches must have exactly one switch, or the root"),
    "switch with a program": (
        {"switches": {"s1": {"runtime_json": "x"}}},
        "keys of switches.s1 must be none, got 'runtime_json'",
    ),
    "unknown key": ({"routers": {}}, "keys of the topology must be hosts, switches, links, got 'routers'"),
    "no hosts": ({"hosts": {}}, "hosts must have 1 to 64 hosts, got 0"),
    "many hosts": ({"hosts": {f"h{n}": {} for n in range(65)}}, "hosts must have 1 to 64 hosts, got 65"),
    "hosts as a list": ({"hosts": ["h1"]}, "hosts must have 1 to 64 hosts, got ['h1']"),
    "host named root": (
        {"hosts.root": {}},
        "names of hosts must be a letter and up to 8 letters, digits or '_', and not 'root', got 'root'",
    ),
    "host named as the switch": ({"hosts.s1": {}}, "hosts must not have a switch's name, got 's1'"),
    "long name": ({"hosts.averylongname": {}}, "names of hosts must be a letter and up to 8 letters"),
    "host's unknown key": ({"hosts.h1.gateway": "x"}, "keys of hosts.h1 must be ip, mac, commands, got 'gateway'"),
    "commands": ({"hosts.h1.commands": "reboot"}, "hosts.h1.commands must be a list of shell commands, got 'reboot'"),
    "no address": (
        {"hosts.h2.ip": None},
        "hosts.h2.ip must be an IPv4 address with its prefix, 10.0.0.1/24 for example, got None",
    ),
    "no prefix": ({"hosts.h2.ip": "10.0.0.2"}, "hosts.h2.ip must be an IPv4 address with its prefix"),
    "bad address": ({"hosts.h2.ip": "10.0.0.256/24"}, "hosts.h2.ip is '10.0.0.256/24'"),
    "broadcast": (
        {"hosts.h2.ip": "10.0.0.255/24"},
        "hosts.h2.ip must not be the first or last address of its network, got '10.0.0.255/24'",
    ),
    "multicast": (
        {"hosts.h2.ip": "224.0.0.1/24"},
        "hosts.h2.ip must be an address that a host can have, got '224.0.0.1/24'",
    ),
    "service address": (
        {"hosts.h2.ip": "10.0.0.254/24"},
        "hosts.h2.ip must be unique, got 10.0.0.254 of the aggregation service",
    ),
    "address twice": ({"hosts.h2.ip": "10.0.0.1/8"}, "hosts.h2.ip must be unique, got 10.0.0.1 of h1"),
    "bad mac": (
        {"hosts.h2.mac": "8:0:0:0:0:1"},
        "hosts.h2.mac must be a unicast MAC address, 08:00:00:00:00:01 for example, got '8:0:0:0:0:1'",
    ),
    "multicast mac": ({"hosts.h2.mac": "01:00:5e:00:00:01"}, "hosts.h2.mac must be a unicast MAC address"),
    "service mac": (
        {"hosts.h2.mac": "02:6B:6F:66:6E:FE"},
        "must be unique, got 02:6b:6f:66:6e:fe of the aggregation service",
    ),
    "mac twice": ({"hosts.h2.mac": "08:00:00:00:00:01"}, "hosts.h2.mac must be unique, got 08:00:00:00:00:01 of h1"),
    "links as a table": ({"links": {}}, "links must be a list, got {}"),
    "host without a link": ({"links.3": None}, "hosts.h4 must have a link to s1, got none"),
    "unknown host": ({"links.0": ["h9", "s1-p1"]}, "links[0] must have a host (h1, h2, h3, h4), got 'h9'"),
    "unknown switch": (
        {"links.0": ["h1", "s2-p1"]},
        "links[0] must have a port of a switch at one end, s1-p1 for example, got 's2-p1'",
    ),
    "host to host": (
        {"links.0": ["h1", "h2"]},
        "links[0] must have a port of a switch at one end, s1-p1 for example, got 'h1'",
    ),
    "switch to switch": ({"links.0": ["s1-p1", "s1-p2"]}, "links[0] must have a host (h1, h2, h3, h4), got 's1-p1'"),
    "port 0": ({"links.0": ["h1", "s1-p0"]}, "links[0] must have a port 1 to 64 of s1, got '0'"),
    "port 65": ({"links.0": ["s1-p65", "h1"]}, "links[0] must have a port 1 to 64 of s1, got '65'"),
    "no port": ({"links.0": ["h1", "s1-p"]}, "links[0] must have a port 1 to 64 of s1, got ''"),
    "port twice": ({"links.1": ["h2", "s1-p1"]}, "a port must have one link, got two on s1-p1: links[1] (h2) and h1"),
    "second link": ({"links.1": ["h1", "s1-p2"]}, "a host must have one link, got a second of h1 in links[1]"),
    "short link": ({"links.0": ["h1"]}, 'links[0] must be ["host", "s1-pN", latency, Mbit/s], got [\'h1\']'),
    "latency": ({"links.0": ["h1", "s1-p1", "5ms", 10]}, "links[0] (h1) must have latency 0, got '5ms'"),
    "rate 0": (
        {"links.0": ["h1", "s1-p1", 0, 0]},
        "links[0] bandwidth must be 0.1 to 100000 Mbit/s, or null for a link that is not shaped, got 0",
    ),
    "rate true": ({"links.0": ["h1", "s1-p1", 0, True]}, "for a link that is not shaped, got True"),
    "rate text": ({"links.0": ["h1", "s1-p1", 0, "fast"]}, "for a link that is not shaped, got 'fast'"),
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
        ("[]", "the topology must be a table, got []"),
        ("{}", "the topology must have hosts, switches and links, got no hosts"),
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
