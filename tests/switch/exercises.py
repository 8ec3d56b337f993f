"""The lines to type at Mininet's prompt for each exercise of the p4lang tutorials, from its README,
and their outcome.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEEDED = """\
import random, runpy, sys
random.seed(int(sys.argv[1]))
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs one of the tutorials' scripts with the same random ports every time: `python3 seeded.py SEED SCRIPT ...`."""

OUTER = re.compile(r"\bid *= (\d+).*?\bsrc *= (\d+\.\S+)", re.DOTALL)
"""Identification and source of the first IPv4 header. Scapy identifies its packets as 1, the kernel does not."""


@dataclass(frozen=True)
class Exercise:
    pings: int
    """The number of answers to `pingall`, with the solution and no controller."""
    lines: list[str]
    outcome: Callable[[Path], object] = lambda _logs: None
    """Reads the log folder; the result must be the same on both switches."""


def until(host: str, condition: str) -> str:
    """Wait at the host, or in the shell (`sh`), for as long as a user at the prompt would."""
    return f"{host} timeout 60 sh -c 'until {condition}; do sleep 0.1; done'"


def listen(host: str) -> list[str]:
    """Start receive.py at the host and wait until it listens."""
    return [f"{host} python3 -u ./receive.py > logs/{host}.out &", until(host, "[ $(wc -l < /proc/net/packet) -gt 1 ]")]


def send(*packets: str) -> list[str]:
    """Run send.py once for each packet, with these arguments."""
    return [f"h1 python3 seeded.py {seed} send.py {packet} > /dev/null" for seed, packet in enumerate(packets)]


def heard(count: int, sign: str = "src *= 10.0.1.1$") -> str:
    """Wait until the receivers have printed `count` lines."""
    return until("sh", f'[ $(cat logs/*.out | grep -c "{sign}") -ge {count} ]')


def packets(logs: Path) -> dict[str, list[str]]:
    """Return by host what receive.py printed of the packets of h1's scripts, except the checksums."""
    said = {log.stem: log.read_text().split("got a packet\n")[1:] for log in sorted(logs.glob("*.out"))}
    return {host: [packet for packet in heard if sent_by_h1(packet)] for host, heard in said.items()}


def sent_by_h1(packet: str) -> bool:
    found = OUTER.search(packet)
    return found is not None and found.groups() == ("1", "10.0.1.1")


def lines(name: str, pattern: str) -> Callable[[Path], list[str]]:
    """Return the lines of a log that match, sorted."""
    return lambda logs: sorted(re.findall(pattern, (logs / name).read_text(), re.MULTILINE))


def beside_iperf(seconds: int) -> list[str]:
    """Send a packet a second to h2, with iperf in the first half."""
    return [
        *listen("h2"),
        "h22 iperf -s -u > /dev/null &",
        f"h11 iperf -c 10.0.2.22 -t {seconds // 2} -u > logs/iperf.log &",
        f'h1 python3 send.py 10.0.2.2 "P4 is cool" {seconds} > /dev/null',
    ]


def tos(logs: Path) -> list[int]:
    return [int(value, 16) for value in re.findall(r"tos *= (\S+)", (logs / "h2.out").read_text())]


def depths(logs: Path) -> list[int]:
    """Return s1's queue depth from each packet. Packets name it last, since s1 is their first switch."""
    said = [re.findall(r"swid *= 1\n.*qdepth *= (\d+)", packet) for packet in packets(logs)["h2"]]
    return [int(depth) for found in said for depth in found]


def marked_while_it_lasts(logs: Path) -> tuple[set[int], int]:
    marks = tos(logs)
    return set(marks), marks[-1]


def deep_while_it_lasts(logs: Path) -> tuple[bool, int]:
    found = depths(logs)
    return max(found) >= 10, found[-1]


def connections(logs: Path) -> dict[str, bool]:
    return {log.stem: "connect failed" not in log.read_text() for log in logs.glob("*-to-*")}


def iperf(client: str, server: str, address: str) -> str:
    return f"{client} timeout 5 iperf -c {address} -t 1 > logs/{client[1:]}-to-{server[1:]} 2>&1"


def busy_links(logs: Path) -> list[str]:
    """Return the ports that carried more than a tenth of the busiest port's traffic."""
    found: dict[str, float] = {}
    for port, rate in re.findall(r"(Switch \d+ - Port \d+): (\S+) Mbps", (logs / "h1.out").read_text()):
        found[port] = max(found.get(port, 0), float(rate))
    return sorted(port for port, rate in found.items() if rate > max(found.values()) / 10)


EXERCISES = {
    "basic": Exercise(12, [*listen("h2"), *send('10.0.2.2 "P4 is cool"'), heard(1)], packets),
    "basic_tunnel": Exercise(
        6,
        [
            *listen("h2"),
            *listen("h3"),
            *send("10.0.2.2 cool", "10.0.3.3 cool", "10.0.2.2 cool --dst_id 2", "10.0.3.3 cool --dst_id 2"),
            heard(4),
        ],
        packets,
    ),
    "calc": Exercise(
        0,
        [r"h1 printf '5+3\n5-3\n12&10\n12|3\n12^10\nquit\n' | python3 calc.py > logs/calc"],
        lines("calc", r"^.*\d.*$"),
    ),
    "ecn": Exercise(20, beside_iperf(30), marked_while_it_lasts),
    "firewall": Exercise(
        12,
        [
            *(f"{server} iperf -s > /dev/null &" for server in ("h1", "h2", "h3")),
            iperf("h1", "h2", "10.0.2.2"),
            iperf("h1", "h3", "10.0.3.3"),
            iperf("h3", "h1", "10.0.1.1"),
        ],
        connections,
    ),
    "flowcache": Exercise(
        0,
        [
            "sh python3 -u ./mycontroller.py > logs/controller &",
            until("sh", 'grep -q "on s3" logs/controller'),
            until("h1", "ping -c 1 -W 1 10.0.2.2 > /dev/null"),
            "h1 ping -c 3 -i 0.2 10.0.2.2 > logs/ping",
            until("sh", "[ $(grep -c ^Deleted logs/controller) -ge 4 ]"),
        ],
        lambda logs: (lines("ping", r"\d+ received")(logs), set(lines("controller", r"^(?:For|Deleted).*")(logs))),
    ),
    "link_monitor": Exercise(
        12,
        [
            *listen("h1"),
            "h1 python3 ./send.py > /dev/null &",
            heard(1, "Switch 1 - Port 4"),
            "h4 iperf -s > /dev/null &",
            "h1 iperf -c 10.0.4.4 -t 8 > logs/iperf.log",
        ],
        busy_links,
    ),
    "load_balance": Exercise(
        0,
        [*listen("h2"), *listen("h3"), *send(*["10.0.0.1 cool"] * 8), heard(8)],
        packets,
    ),
    "mri": Exercise(20, beside_iperf(30), deep_while_it_lasts),
    "multicast": Exercise(9, []),
    "p4runtime": Exercise(
        0,
        [
            "sh python3 -u ./mycontroller.py > logs/controller &",
            until("sh", "grep -q counters logs/controller"),
            "h1 ping -c 4 -i 0.2 10.0.2.2 > logs/ping",
            until("sh", '[ $(grep -c ": 4 packets" logs/controller) -ge 4 ]'),
        ],
        lambda logs: (
            lines("ping", r"\d+ received")(logs),
            set(lines("controller", r"^.*(?:\b4 packets|Installed|->).*$")(logs)),
        ),
    ),
    "qos": Exercise(
        20,
        [
            *listen("h2"),
            *(f"h1 python3 send.py --p={kind} --des=10.0.2.2 --m=cool --dur=2" for kind in ("UDP", "TCP")),
            heard(2, "dport *= http"),
        ],
        packets,
    ),
    "source_routing": Exercise(
        0, [*listen("h2"), r"h1 printf '2 3 2 2 1\nq\n' | python3 send.py 10.0.2.2 > /dev/null", heard(1)], packets
    ),
}
