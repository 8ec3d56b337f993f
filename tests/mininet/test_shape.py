"""The `tc` commands that change a link's rate, at each of its ends; nothing is created."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from types import SimpleNamespace
from typing import cast

import interfaces
import network
import pytest
from errors import NetworkError
from namespaces import Namespace
from topology import star

MTU = 1500


class Commands:
    """Keeps the requested commands with their namespaces."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._inside = ""

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        self._inside = name
        yield
        self._inside = ""

    def namespace(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(entered=lambda: self.entered(name))

    def tc(self, lines: Iterable[str]) -> None:
        self.seen += [(self._inside, line) for line in lines]

    def unshape(self, name: str) -> None:
        self.seen.append((self._inside, f"no limit on {name}"))

    def taken(self) -> list[tuple[str, str]]:
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(interfaces, "tc", made.tc)
    monkeypatch.setattr(interfaces, "unshape", made.unshape)
    monkeypatch.setattr(network, "_preconditions", lambda plan: None)
    return made


def shaped(commands: Commands, mbps: float | None) -> network.Network:
    """Return a network of two hosts whose links have this rate."""
    management = IPv4Network("172.30.255.0/24")
    made = network.Network(network.NetworkPlan(topology=star(2, mbps), driver="netns", management=management, mtu=MTU))
    made.root = cast(Namespace, commands.namespace("root"))
    made._driver = SimpleNamespace(namespaces={name: commands.namespace(name) for name in ("h1", "h2")})
    return made


def limit(name: str, mbps: int, burst: int) -> str:
    rate = f"rate {mbps}000000bit burst {burst}b limit {max(1 << 20, mbps * 25_000)}b"
    return f"qdisc replace dev {name} root handle 5: tbf {rate}"


def test_new_rate_applies_to_both_ends(commands: Commands) -> None:
    shaped(commands, 200).shape("h2", 50)
    assert commands.taken() == [("root", limit("s1-eth2", 50, 12500)), ("h2", limit("h2-eth0", 50, 12500))]


def test_limit_is_removed_and_restored(commands: Commands) -> None:
    made, burst = shaped(commands, None), 4 * (MTU + interfaces.FRAME_HEADER)
    for mbps in (10, None, 10):
        made.shape("h1", mbps)
        assert commands.taken() == (
            [("root", "no limit on s1-eth1"), ("h1", "no limit on h1-eth0")]
            if mbps is None
            else [("root", limit("s1-eth1", 10, burst)), ("h1", limit("h1-eth0", 10, burst))]
        )
        assert made.rates == {"h1": mbps, "h2": None}


def test_unknown_host_is_named(commands: Commands) -> None:
    with pytest.raises(NetworkError, match="the host must be one of h1, h2, got 'h3'"):
        shaped(commands, 10).shape("h3", 5)
