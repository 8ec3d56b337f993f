"""`kofn simulate --times` for a configuration with [schedule]."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kofn.sim.runner import command
from kofn.sim.schedules import simulate_schedules
from kofn_common.config.errors import ConfigError
from kofn_common.config.schedule import FAMILIES
from kofn_common.config.schema import Config

LAYER = {"elements": 50_000, "forward_ms": 10.0, "error_ms": 10.0, "weight_ms": 10.0}


def test_times_are_those_of_the_layers_and_the_link() -> None:
    def config(mbps: float) -> Config:
        given = {"model": {"workload": "accelerator"}, "layer": [LAYER] * 4, "network": {"link_mbps": mbps}}
        return Config.of({**given, "schedule": {"family": "buckets", "threshold_kb": 1}})

    slow, fast = simulate_schedules(config(50)), simulate_schedules(config(1000))
    assert [one.schedule.name for one in slow] == ["buckets", *FAMILIES]
    assert [one.configured for one in slow] == [True] + [False] * len(FAMILIES)
    by_name = {one.schedule.name: one for one in slow[1:]}
    transfer_s = 4 * 50_000 * 32 / 50e6  # without headers
    assert by_name["sequential"].iteration_s == pytest.approx(0.11 + transfer_s, rel=0.1)
    assert by_name["priority"].iteration_s < by_name["buckets"].iteration_s <= slow[0].iteration_s
    assert all(one.iteration_s >= one.bound_s * (1 - 1e-9) for one in slow)
    assert all(one.iteration_s < other.iteration_s for one, other in zip(fast, slow, strict=True))


def test_layers_of_a_model_are_timed() -> None:
    found = simulate_schedules(Config.of({"model": {"compute_ms": 50}, "schedule": {"family": "auto"}}))
    assert [one.schedule.name for one in found] == [*FAMILIES]
    assert all(0.0499 < one.iteration_s < 0.5 for one in found)


def test_command_prints_the_schedules_times(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[schedule]\nfamily = 'late-front'\nfront = 1\n")
    shown = CliRunner().invoke(command, [str(path), "--times", "--json"])
    first, *_ = json.loads(shown.stdout)
    assert (first["family"], first["front"], first["configured"]) == ("late-front", 1, True)
    refused = CliRunner().invoke(command, [str(path)])
    assert refused.exit_code == 2 and "only --times simulates schedules" in refused.output


@pytest.mark.slow
def test_workload_without_layers_is_refused(tmp_path: Path) -> None:
    config = Config.of({"model": {"workload": "examples.workloads.torch_digits:TorchDigits"}})
    with pytest.raises(ConfigError):
        simulate_schedules(config)
