"""Layers that an accelerator would compute, by a clock that only sleeping moves."""

import pytest

from kofn_common.config.schema import Config
from kofn_host.schedule.orders import usual
from kofn_host.workload.workloads import accelerator
from kofn_host.workload.workloads.accelerator import Accelerator

LAYER = {"elements": 3, "forward_ms": 10.0, "error_ms": 20.0, "weight_ms": 40.0}


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(accelerator, "time", made)
    return made


def test_passes_are_queued_and_weight_gradients_are_awaited(clock: Clock) -> None:
    config = Config.of({"model": {"workload": "accelerator"}, "layer": [LAYER, LAYER]})
    model = Accelerator(config, 0).model
    for layer in (0, 1):
        model.forward(layer)
    assert (clock.now_s, model.span_s) == (5.0, pytest.approx((5.010, 5.020))), "giving a pass must not block"
    clock.sleep(0.005)
    assert model.weight(1).shape == (3,)
    assert clock.now_s == pytest.approx(5.060), "a pass starts after the passes before it"
    clock.sleep(0.1)
    model.error(1)
    assert model.span_s == pytest.approx((5.160, 5.180)), "a pass of an idle accelerator starts at once"


def test_expected_passes_go_on_while_none_is_awaited(clock: Clock) -> None:
    model = Accelerator(Config.of({"model": {"workload": "accelerator"}, "layer": [LAYER, LAYER]}), 0).model
    model.expect(usual(2, 0))
    model.weight(1)
    clock.sleep(0.05)
    model.error(1)
    assert model.span_s == pytest.approx((5.040, 5.060))
    model.weight(0)
    assert (clock.now_s, model.span_s) == (pytest.approx(5.100), pytest.approx((5.060, 5.100)))
