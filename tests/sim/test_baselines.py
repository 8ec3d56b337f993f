"""A parameter server by packets and a ring by its time model: times, sums, files and refusals."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import kofn
from kofn.cli.main import main
from kofn.sim.collective_costs import ring_packet_s, server_s
from kofn.sim.costs import Costs
from kofn.sim.learning import ring_mean
from kofn.sim.machine_costs import known_costs
from kofn.sim.switches import VirtualServer
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES
from kofn_host.collectives.kinds.ring import Ring
from kofn_host.training import JobCoding
from tests.ports import own_port
from tests.sim.lab import COSTS, FREE, Trained, written

ITERATIONS, WORKERS = 6, 3
COMPUTE_S = 0.005
PLAIN = ("job.collective=server", "compress.codec=int32", "network.link_mbps=20")


def config_of(tmp_path: Path, *settings: str, objective: str = "all", late: bool = False) -> Config:
    """Return a small job; without `late` no worker is a straggler."""
    path = written(tmp_path, objective=objective, rule="auto", iterations=ITERATIONS)
    config = Config.load(path, settings)
    return config if late else replace(config, straggler=())


def simulated(path: Path, costs: Costs, *arguments: object) -> Result:
    """Run `kofn simulate` with these costs."""
    costs.save(path.parent / "costs.json")
    given = (path, "--costs", path.parent / "costs.json", "--quiet", *arguments)
    return CliRunner().invoke(main, ["simulate", *map(str, given)])


def ring(tmp_path: Path, costs: Costs, name: str = "ring", more: str = "", *settings: str) -> dict[str, Any]:
    """Simulate a ring in the folder `name`; return the summary of its trial."""
    path = written(tmp_path, more, objective="all", rule="auto", iterations=ITERATIONS)
    given = [part for setting in ("job.collective=ring", *settings) for part in ("--set", setting)]
    result = simulated(path, costs, *given, "--out", tmp_path / name, "--json")
    assert result.exit_code == 1, "the target of 100 % is missed"
    (trial,) = json.loads(result.stdout)["trials"]
    found: dict[str, Any] = trial
    return found


# -- the server


def test_server_sums_what_the_switch_sums(tmp_path: Path) -> None:
    digests = []
    for collective in ("server", "switch"):
        trained = Trained(config_of(tmp_path, *PLAIN, f"job.collective={collective}"), tmp_path / collective).run()
        trained.check()
        digests.append([line.params for line in trained.read()[0].iterations])
    assert digests[0] == digests[1]


def test_link_of_the_server_carries_the_packets_of_all_workers(tmp_path: Path) -> None:
    trained = Trained(config_of(tmp_path, *PLAIN, "model.hidden=[256]"), tmp_path / "out", FREE).run()
    simulation, job = trained.simulation, trained.config.job
    server, blocks = simulation.switches, trained.learning.coding.layout.blocks
    assert isinstance(server, VirtualServer)
    assert server.downlink.packets == server.uplink.packets == WORKERS * blocks * ITERATIONS
    frame = FRAME_BYTES + HEADER_BYTES + job.words * WORD_BYTES
    least_s = COMPUTE_S + WORKERS * blocks * frame * 8 / 20e6
    assert 0.9 * least_s < simulation.ends_s[-1] / ITERATIONS < 1.1 * least_s


def test_server_has_a_fixed_k(tmp_path: Path) -> None:
    trained = Trained(config_of(tmp_path, *PLAIN, objective="fixed:2", late=True), tmp_path / "out").run()
    trained.check()
    assert {(line.k, line.count) for line in trained.read()[0].iterations} == {(2, 2)}


def test_server_handles_one_packet_after_another(tmp_path: Path) -> None:
    """Even if every host has its own processor."""
    config = config_of(tmp_path, *PLAIN, "network.link_mbps=1000")
    trained = Trained(config, tmp_path / "out", replace(FREE, server_s=1e-3)).run()
    blocks = trained.learning.coding.layout.blocks
    assert trained.simulation.ends_s[-1] >= ITERATIONS * WORKERS * blocks * 1e-3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("job.collective=server",), "run.trials must have 'all' and 'fixed:K' alone, got 'progress'"),
        (("job.collective=ring",), "run.trials must be [\"all\"] (--trial all), got ['progress']"),
        (("job.collective=gloo",), "run.trials must be [\"all\"] (--trial all), got ['progress']"),
    ],
)
def test_policies_are_refused_as_in_a_run(tmp_path: Path, settings: tuple[str, ...], words: str) -> None:
    path = written(tmp_path, objective="progress", rule="auto")
    result = simulated(path, COSTS, *(part for setting in settings for part in ("--set", setting)))
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("collective", "missing"), [("server", "forward_s and server_s"), ("ring", "ring_step_s and ring_packet_s")]
)
def test_costs_of_another_collective_are_refused(tmp_path: Path, collective: str, missing: str) -> None:
    path = written(tmp_path, objective="all", rule="auto")
    switch = replace(COSTS, forward_s=0, server_s=0, ring_step_s=0, ring_packet_s=0)
    result = simulated(path, switch, "--set", f"job.collective={collective}", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{missing} must be more than 0 with job.collective = '{collective}', got 0" in result.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=f"{missing} must be more than 0"):
        known_costs(tmp_path / "costs.json", config_of(tmp_path, f"job.collective={collective}"))


@pytest.mark.parametrize("collective", ["server", "ring"])
def test_scale_has_no_baselines(tmp_path: Path, collective: str) -> None:
    path = written(tmp_path, objective="all", rule="auto")
    result = CliRunner().invoke(main, ["simulate", str(path), "--scale", "--set", f"job.collective={collective}"])
    assert result.exit_code == 2
    assert f"job.collective must be 'switch' with --scale, got '{collective}'" in result.stderr


# -- the ring


def test_mean_has_the_bytes_of_a_real_ring() -> None:
    gradients = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(WORKERS)]
    with own_port() as port, ThreadPoolExecutor(WORKERS) as pool:
        there = tuple(f"127.0.0.{rank + 1}:{port}" for rank in range(WORKERS))

        def call(rank: int) -> Any:
            with Ring(rank, there) as communicator:
                return communicator.all_reduce(gradients[rank], op="mean").result()

        for mean in pool.map(call, range(WORKERS)):
            assert mean.tobytes() == ring_mean(gradients).tobytes()


def test_ring_takes_the_time_of_its_bytes_on_the_slowest_link(tmp_path: Path) -> None:
    link = "[network]\nlink_mbps = 20\n[[link]]\nworkers = [1]\nmbps = {}\nat_iteration = 1\n"
    found = [ring(tmp_path, FREE, f"{mbps}", link.format(mbps), "model.hidden=[256]") for mbps in (20, 5)]
    quick, slow = (trial["mean_iteration_s"] for trial in found)
    sent = found[0]["bytes_sent"] / WORKERS / ITERATIONS
    assert sent == pytest.approx(2 * (WORKERS - 1) / WORKERS * 4 * (64 * 256 + 256 + 256 * 10 + 10), rel=0.01)
    burst = 36056  # an idle link passes these bytes at once
    assert quick == pytest.approx(COMPUTE_S + 0.020 + 8 * (sent - burst) / 20e6, rel=0.2)
    slower = (ITERATIONS - 1) / ITERATIONS  # all iterations but the first
    assert slow - quick == pytest.approx(slower * (8 * sent / 5e6 - 8 * sent / 20e6), rel=0.2)


def test_ring_waits_for_the_slowest_worker_and_for_each_step(tmp_path: Path) -> None:
    quick, slow = (
        ring(tmp_path, replace(FREE, ring_step_s=cost_s), name)["mean_iteration_s"]
        for name, cost_s in (("quick", 1e-9), ("slow", 1e-3))
    )
    assert quick > COMPUTE_S + 0.010, "worker 2 is blocked for 20 ms, on average"
    assert slow - quick == pytest.approx(2 * (WORKERS - 1) * 1e-3, rel=0.05)


def test_folder_of_a_ring_reads_as_that_of_a_run(tmp_path: Path) -> None:
    trial = ring(tmp_path, COSTS)
    assert (trial["collective"], trial["ledger"], trial["iterations"]) == ("ring", False, ITERATIONS)
    assert (trial["identity_error"], trial["conservation_error"], trial["late_gradients"]) == (None, None, 0)
    assert trial["k_iterations"] == {str(WORKERS): ITERATIONS}
    frame = kofn.read(tmp_path / "ring").metrics
    assert len(frame) == WORKERS * ITERATIONS
    assert set(frame["count"]) == {WORKERS}
    assert not list((tmp_path / "ring").glob("**/*.npz")), "there is no ledger"
    (pair,) = json.loads(
        simulated_against(tmp_path / "ring", tmp_path / "again", tmp_path / "ring" / "costs.json").stdout
    )
    assert pair["mean_iteration_s"]["ratio"] == pytest.approx(1.0)


def simulated_against(folder: Path, out: Path, costs: Path) -> Result:
    arguments = ["--against", folder, "--costs", costs, "--out", out, "--json", "--quiet"]
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_uplink_of_a_rack_limits_a_ring(tmp_path: Path) -> None:
    network = "[network]\nlink_mbps = 20\nuplink_mbps = {}\n"
    tree = ("model.hidden=[256]", "job.racks=3")
    quick, slow = (ring(tmp_path, FREE, f"{mbps}", network.format(mbps), *tree) for mbps in (20, 5))
    assert slow["mean_iteration_s"] > 2 * quick["mean_iteration_s"]


def test_times_of_a_ring_without_training(tmp_path: Path) -> None:
    path = written(tmp_path, objective="all", rule="auto", iterations=ITERATIONS)
    result = simulated(path, COSTS, "--times", "--json", "--set", "job.collective=ring")
    (trial,) = json.loads(result.stdout)
    assert trial["iterations"] == ITERATIONS
    assert trial["mean_iteration_s"] > COMPUTE_S


def test_costs_are_measured() -> None:
    assert 0 < ring_packet_s() < 0.01
    config = Config()
    assert 0 < server_s(JobCoding.of(config.job, config.compress, 5000)) < 0.01
