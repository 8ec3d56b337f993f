"""The hosts of a topology.json, and the errors of an unusable one."""

import json
from pathlib import Path
from typing import Any

import pytest

from kofn_controller.errors import TopologyError
from kofn_controller.p4runtime.topology import read_topology


def document(hosts: int = 2) -> dict[str, Any]:
    return {
        "hosts": {f"h{n}": {"ip": f"10.0.0.{n}/24", "mac": f"08:00:00:00:00:{n:02x}"} for n in range(1, hosts + 1)},
        "switches": {"s1": {}},
        "links": [[f"h{n}", f"s1-p{n}"] for n in range(1, hosts + 1)],
    }


def read(folder: Path, content: Any) -> Any:
    path = folder / "topology.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_topology(path)


def test_ranks_follow_host_numbers_and_ports_the_links(tmp_path: Path) -> None:
    content = document(11)
    content["links"].reverse()
    content["links"][0] = ["s1-p40", "h11", "1ms", 100]  # either direction; latency and bandwidth are not read here
    hosts = read(tmp_path, content).hosts
    assert [host.name for host in hosts] == [f"h{n}" for n in range(1, 12)]
    assert [host.rank for host in hosts] == list(range(11))
    assert (hosts[1].port, hosts[10].port) == (2, 40)
    assert (hosts[1].mac, hosts[1].ip) == (0x080000000002, 0x0A000002)


def edit(**changes: Any) -> dict[str, Any]:
    return {**document(), **changes}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object with hosts, switches and links, got list"),
        (edit(hosts={}), "'hosts' must be an object of h1, h2, ..., got {}"),
        (edit(links=None), "'links' must be a list of [host, switch-pN], got None"),
        (edit(links=[["h1", "s1-p1"]]), "host 'h2' must have a link to a switch"),
        (edit(links=[["h1", "s1-p1"], ["h2", "s1-p1"]]), "got port 1 of s1 again"),
        (edit(links=[["h1", "s1-p1"], ["h1", "s1-p2"]]), "host 'h1' must have one link, got two"),
        (
            edit(links=[["h1", "s1-p1"], ["h2", "s2-p2"]]),
            "all hosts must be at one switch, or every switch with hosts must have one link",
        ),
        (edit(links=[["h1", "s1"]]), "a link must be [host, switch-pN]"),
        (edit(links=["h1-s1"]), "a link must be [host, switch-pN]"),
        (edit(links=[["h1", "s1-p511"]]), "a port must be 1 to 510, got 511"),
        (edit(hosts={"left": {}}), "names of hosts must be h1, h2, ..., got 'left'"),
        (
            edit(hosts={"h1": {"ip": "10.0.0.1/24", "mac": "8:0"}}),
            "mac of host 'h1' must be six pairs of hex digits, got '8:0'",
        ),
        (
            edit(hosts={"h1": {"ip": "10.0.0.300", "mac": "08:00:00:00:00:01"}}),
            "ip of host 'h1' must be an address like '10.0.0.1/24', got '10.0.0.300'",
        ),
        (edit(hosts={"h1": 7}), "mac of host 'h1' must be six pairs of hex digits, got ''"),
    ],
)
def test_errors_name_the_entry(tmp_path: Path, content: Any, words: str) -> None:
    with pytest.raises(TopologyError) as error:
        read(tmp_path, content)
    assert words in str(error.value)
    assert str(error.value).startswith(str(tmp_path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file"):
        read_topology(tmp_path / "topology.json")
