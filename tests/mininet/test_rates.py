"""The choice among several measurements of a link's rate."""

from collections.abc import Sequence
from typing import cast

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
