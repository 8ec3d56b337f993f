"""A tree of switches in virtual time: trainings are exact, and uplinks carry one increment and one result a block."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kofn.cli.main import main
from kofn.sim.clock import VirtualClock
from kofn.sim.machine import Machine
from kofn.sim.network import Link
from kofn.sim.simulation import Simulation
from kofn.sim.switches import NO_FAULTS, VirtualSwitches
from kofn_common.config.schema import Config
from kofn_common.wire.packet import HEADER_BYTES, MEMBERS_BYTES, WORD_BYTES, KofnHeader
from tests.sim.lab import COSTS, FREE, Trained, times, written

TREE = ["job.workers=6", "job.racks=2"]


def tree(folder: Path, more: str = "", *settings: str, objective: str = "all", iterations: int = 20) -> Config:
    """Return a configuration of two racks of three workers."""
    path = written(folder, more, objective=objective, iterations=iterations)
    return Config.load(path, [*TREE, *settings])


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["fixed:4", "throughput", "all"])
@pytest.mark.parametrize("rule", ["stash", "drop", "abort"])
def test_training_is_exact(tmp_path: Path, objective: str, rule: str) -> None:
    trained = Trained(tree(tmp_path, "", f"policy.late_gradient={rule}", objective=objective), tmp_path / "out").run()
    trained.check()
    counts = {line.count for worker in trained.read() for line in worker.iterations}
    assert min(counts) >= (6 if objective == "all" else 1)
    assert objective == "all" or max(counts) > 3, "contributions of both racks must be in a sum"


@pytest.mark.slow
def test_training_is_exact_in_narrow_lanes_under_faults(tmp_path: Path) -> None:
    faults = "[[fault]]\ndrop = 0.05\nduplicate = 0.05\njitter_ms = 3\n"
    config = tree(tmp_path, faults, "compress.codec=int8", objective="fixed:4", iterations=40)
    trained = Trained(config, tmp_path / "out").run()
    trained.check()
    assert trained.total("retransmissions") > 0


def blocks_of(simulation: Simulation) -> int:
    """Return the number of blocks of the whole training."""
    return simulation.workers[0].protocol.layout.total * simulation.config.run.max_iterations


@pytest.mark.parametrize("racks", [2, 3, 6])
def test_uplinks_carry_one_increment_and_one_result_a_block(tmp_path: Path, racks: int) -> None:
    """With k = n, no loss and no waiting, each rack sends one packet, and gets a result and the acknowledgements."""
    config = replace(tree(tmp_path, "", f"job.racks={racks}"), straggler=())
    simulation = Trained(config, tmp_path / "out", FREE).run().simulation
    blocks, values = blocks_of(simulation), config.job.words * WORD_BYTES
    acknowledged = acknowledgements(racks, config.job.workers)
    switches = simulation.switches
    assert isinstance(switches, VirtualSwitches)
    assert sum(link.packets for link in switches.uplinks) == blocks * racks
    assert sum(link.payload_bytes for link in switches.uplinks) == blocks * racks * (HEADER_BYTES + values)
    assert sum(link.packets for link in switches.downlinks) == blocks * (racks + acknowledged)
    result = HEADER_BYTES + racks * MEMBERS_BYTES + values
    down = sum(link.payload_bytes for link in switches.downlinks)
    assert down == blocks * (racks * result + acknowledged * HEADER_BYTES)


def acknowledgements(racks: int, workers: int) -> int:
    """Return the number of ADDED packets of a block whose racks each send one increment."""
    found, told = 0, workers
    for rack in range(1, racks):
        missing = workers - rack * workers // racks
        found += racks if missing <= told // 2 else 1
        told = missing if missing <= told // 2 else told
    return found


def test_leaves_send_early_with_k_below_n(tmp_path: Path) -> None:
    """Otherwise a block of four would wait for a whole rack, whose third worker is blocked."""
    few, everyone = (times(tree(tmp_path, objective=objective)) for objective in ("fixed:4", "all"))
    assert few.mean_iteration_s < 0.9 * everyone.mean_iteration_s


@pytest.mark.slow
def test_slow_uplink_delays_iterations(tmp_path: Path) -> None:
    fast = tree(tmp_path, "", "model.hidden=[256]", "network.link_mbps=1000", iterations=5)
    slow = replace(fast, network=replace(fast.network, uplink_mbps=10.0))
    trained = [Trained(config, tmp_path / str(at), FREE).run() for at, config in enumerate((fast, slow))]
    quick_s, slow_s = (one.simulation.clock.time() for one in trained)
    assert slow_s - quick_s > 0.7 * 5 * 8 * 4 * trained[0].learning.elements / 10e6


def test_leaves_report_ranks_of_the_job(tmp_path: Path) -> None:
    clock, found = VirtualClock(), list[tuple[int, int, bool]]()
    job = tree(tmp_path).job
    switches = VirtualSwitches(
        clock,
        Machine(clock, 0),
        job,
        uplink_mbps=None,
        switch_s=0.0,
        digest=lambda *arrival: found.append(arrival),
    )
    got = list[int]()
    links = [
        Link(clock, None, NO_FAULTS, lambda header, values, rank=rank: got.append(rank)) for rank in range(job.workers)
    ]
    switches.lead(links)
    switches.set_k(2)
    for rank, worker in ((1, 1), (5, 2)):
        switches.of(rank).take(KofnHeader(worker=worker, scale=1), bytes(WORD_BYTES))
        clock.run()
    assert found == [(1, 1, False), (5, 1, False)]
    assert sorted(got) == [*range(6)], "two contributions close the block, and all workers get the result"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_simulation_has_1024_workers(tmp_path: Path) -> None:
    """All checks hold, in minutes and about a gigabyte."""
    path = tmp_path / "large.toml"
    COSTS.save(tmp_path / "costs.json")
    path.write_text(
        "[run]\ntrials = ['fixed:900', 'all']\nmax_iterations = 3\n[job]\nworkers = 1024\nracks = 16\n"
        "[[straggler]]\nworkers = [3, 1000]\nmean_ms = 30\n"
    )
    given = ["simulate", str(path), "--costs", str(tmp_path / "costs.json"), "--cores", "0", "--out"]
    result = CliRunner().invoke(main, [*given, str(tmp_path / "out")])
    assert "accuracy 95.0% was not reached" in result.stderr
    rows = {line[:24].strip(): line[24:].split() for line in result.output.splitlines()}
    assert rows["replicas bit-identical"] == ["yes", "yes"]
    assert rows["gradients conserved"] == ["exactly", "exactly"]
