"""Configurations whose schedule lacks a requirement are refused before anything runs."""

from typing import Any

import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.training.overlapped import OverlappedTraining, check_schedule

LAYER = {"elements": 512, "forward_ms": 1.0, "error_ms": 1.0, "weight_ms": 1.0}


def config(**given: Any) -> Config:
    schedule: dict[str, Any] = {"family": "late-front", **given.pop("schedule", {})}
    return Config.of({"schedule": schedule, **given})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"schedule": {"front": 9}}, r"schedule.front must be 0 to 2, the number of layers, got 9"),
        ({"job": {"collective": "ring"}}, "needs a switch or a server, got job.collective 'ring'"),
        ({"model": {"workload": "examples.workloads.torch_digits:TorchDigits"}}, "derived from LayeredWorkload"),
    ],
)
def test_schedule_without_its_requirements_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_schedule(config(**given))


def test_last_layer_is_first_on_the_wire_where_all_blocks_fit_the_window() -> None:
    """Otherwise blocks are numbered as they will leave: the first layer's overtake waiting blocks of the others."""
    for window, order in ((8, [2, 2, 1, 1, 0, 0]), (2, [2, 0, 0, 1, 1, 2])):
        made = OverlappedTraining(
            config(
                schedule={"family": "priority", "threshold_kb": 2},
                job={"words": 4, "slots": 16, "window": window},
                network={"link_mbps": 1.0},
                model={"workload": "accelerator"},
                layer=[LAYER] * 3,
            ),
            0,
        )
        found = [
            next(
                layer for layer in range(3) for place, _ in made._layout.places(layer) if place.start <= at < place.stop
            )
            for at in range(0, made._layout.elements, 256)
        ]
        assert found == order
