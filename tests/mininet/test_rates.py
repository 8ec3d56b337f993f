"""The choice among several measurements of a link's rate."""

import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import checks
import pytest
from checks import Rates
from namespaces import Namespace


def host(name: str) -> checks.CheckedHost:
    return checks.CheckedHost(
        name=name,
        ip="10.0.0.1",
        management="172.30.255.2",
        mbps=100.0,
        switch="s1",
        uplink_mbps=None,
        namespace=cast(Namespace, None),
    )


class Link:
    """A link that carries 1000 frames of 1000 bytes a second: both sockets, the clock, and select() in their place."""

    def __init__(self, held_up_s: float) -> None:
        """At that time other processes hold up the measurement."""
        self._held_up_s = held_up_s
        self._now_s = 0.0
        self._received = 0

    def monotonic(self) -> float:
        return self._now_s

    def select(self, receivers: Any, senders: Any, *_: Any) -> tuple[Any, Any, Any]:
        hold = self._now_s <= self._held_up_s < self._now_s + 0.001
        self._now_s += 0.3 if hold else 0.001
        return receivers, senders, []

    def send(self, payload: bytes) -> None:
        pass

    def recv_into(self, buffer: bytearray) -> None:
        if self._received >= self._now_s * 1000 - 0.5:
            raise BlockingIOError
        self._received += 1


@pytest.mark.parametrize("held_up_s", [0.0, 0.1, 0.4])
def test_frames_that_arrive_while_the_measurement_is_held_up_are_counted(
    monkeypatch: pytest.MonkeyPatch, held_up_s: float
) -> None:
    link = Link(held_up_s)
    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=link.monotonic))
    monkeypatch.setattr(checks, "select", SimpleNamespace(select=link.select))
    monkeypatch.setattr(checks, "_queued", lambda _: 0)
    rates = checks._transfer(cast(socket.socket, link), cast(socket.socket, link), 1000, 0, 0.5)
    assert rates.received == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize(
    ("measured", "taken", "good"),
    [([90.0], 90.0, True), ([30.0, 85.0], 85.0, True), ([30.0, 50.0, 40.0], 50.0, False), ([120.0], 120.0, False)],
)
def test_busy_machine_may_be_too_slow_twice(
    monkeypatch: pytest.MonkeyPatch, measured: Sequence[float], taken: float, good: bool
) -> None:
    rates = iter(measured)
    monkeypatch.setattr(checks, "measure", lambda *_: Rates(sent=(rate := next(rates)), received=rate))
    check = checks.shaping(host("h1"), host("h2"), 1500, 0.2)
    assert (check["measured_mbps"], check["ok"]) == (taken, good)
    assert next(rates, None) is None


@pytest.mark.parametrize(
    ("sent", "received", "good"), [(41.0, 40.0, True), (80.0, 40.0, False), (0.0, 0.0, False), (130.0, 125.0, False)]
)
def test_link_that_is_never_full_passes(
    monkeypatch: pytest.MonkeyPatch, sent: float, received: float, good: bool
) -> None:
    """It fails if packets are lost, if none arrive, or if too many do."""
    found = Rates(sent=sent, received=received, waited=not sent)
    monkeypatch.setattr(checks, "measure", lambda *_: found)
    check = checks.shaping(host("h1"), host("h2"), 1500, 0.2)
    assert check["ok"] == good
    assert ("processors" in check["detail"]) == good
