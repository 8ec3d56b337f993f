"""Runs with a tree of switches: the processes started, refusals, and a real training whose switches are restarted."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kofn.run.commands import Commands
from kofn.run.jobs import plan_jobs
from kofn.run.port_faults import port_rules
from kofn.run.topology import wanted_topology
from kofn_common.config.errors import ConfigError
from kofn_common.config.faults import FaultSection
from kofn_common.config.job import JobSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.schema import Config
from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES, MEMBERS_BYTES, WORD_BYTES
from tests.run.real_run import RealRun
from tests.targets import TARGETS

TREE = """
[run]
trials = ["fixed:3"]
target = 0.9
max_iterations = 2000
trial_deadline_s = 60
[network]
uplink_mbps = 100
[job]
workers = 4
racks = 2
[model]
learning_rate = 0.005
compute_ms = 8
"""

RESTARTS = "\n".join(
    f"[[event]]\nat_iteration = {iteration}\nafter_s = {after_s}\n{action} = '{switch}'"
    for iteration, switch in ((20, "leaf-1"), (60, "root"))
    for after_s, action in ((0.0, "kill"), (0.5, "start"))
)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.parametrize("target", TARGETS)
def test_training_survives_the_restart_of_a_leaf_and_of_the_root(tmp_path: Path, target: str) -> None:
    with RealRun(tmp_path, "--target", target, config=TREE + RESTARTS) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    (result,) = json.loads((run.out / "summary.json").read_text())["trials"]
    assert (result["restarts"], result["missed_events"], result["regroups"]) == (2, [], 1)
    logs = run.out / "fixed-3" / "logs"
    assert {path.name for path in logs.glob("[lr]*.log")} == {"root.log", "leaf-0.log", "leaf-1.log"}
    said = (logs / "controller.log").read_text()
    first, second = re.findall(r"(?:start with k = 3|resumed with)[,]? generation (\d+)", said)
    assert int(second) > int(first)
    assert re.search(rf"leaf-1 at .* trying again(.|\n)*leaf-1 at .* installed(.|\n)*generation {second}", said), said


ALL = """
[run]
trials = ["all"]
target = 0.999
max_iterations = 12
[job]
workers = 4
racks = {racks}
[policy]
late_gradient = "stash"
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.parametrize("target", TARGETS)
def test_tree_trains_like_one_switch_to_the_bit(tmp_path: Path, target: str) -> None:
    """With k = n the ledgers are equal; for each block an uplink carries one increment, one result, and little else."""
    accounts, runs = [], []
    for racks in (1, 2):
        folder = tmp_path / str(racks)
        folder.mkdir()
        with RealRun(folder, "--target", target, config=ALL.format(racks=racks)) as run:
            run.wait()
        runs.append(run.out / "all")
        accounts.append([dict(np.load(runs[-1] / f"worker-{rank}.npz")) for rank in range(4)])
    for flat, tree in zip(*accounts, strict=True):
        assert flat.keys() == tree.keys()
        assert all(np.array_equal(flat[name], tree[name]) for name in flat)
    links = json.loads((runs[1] / "links.json").read_text())
    packets = 12 * BLOCKS
    for leaf in ("s1", "s2"):
        up, down = links[leaf]
        assert packets * PACKET <= up < 1.5 * packets * PACKET
        assert packets * (PACKET + 2 * MEMBERS_BYTES) <= down < 1.5 * packets * (PACKET + 2 * MEMBERS_BYTES)


BLOCKS = 19
"""Blocks of four words of the default model."""

PACKET = FRAME_BYTES + HEADER_BYTES + 4 * WORD_BYTES


FORMATS = """
[run]
trials = ["all"]
target = 0.999
max_iterations = 22
[network]
link_mbps = 50
[job]
workers = 4
racks = 2
words = 8
window = 8
[compress]
codec = "auto"
ratio_control = "deliverable"
[model]
hidden = [300, 300]
""" + "".join(
    f"[[link]]\nworkers = [2, 3]\nmbps = {mbps}\nat_iteration = {iteration}\n"
    for mbps, iteration in ((4, 4), (50, 8), (4, 12), (50, 16), (4, 20))
)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.parametrize("target", TARGETS)
def test_racks_may_send_a_block_in_different_lanes(tmp_path: Path, target: str) -> None:
    """When its links become slow within an iteration, a rack's workers use narrower lanes at once."""
    with RealRun(tmp_path, "--target", target, config=FORMATS) as run:
        run.wait()
        assert re.search(r"replicas bit-identical +yes", run.text()) and re.search(r"conserved +exactly", run.text())
    workers = [(run.out / "all" / f"worker-{rank}.jsonl").read_text() for rank in range(4)]
    assert sum(int(count) for text in workers[2:] for count in re.findall(r'"refused": ?(\d+)', text)) > 0


def test_each_switch_has_its_own_ports_and_device() -> None:
    commands = Commands(
        network=NetworkSection(device_id=7), topology=Path("t"), certificates=None, switches=len(tree().switches)
    )
    assert commands.p4runtime() == [f"127.0.0.1:{port}" for port in (50051, 50053, 50054)], "50052 is the controller's"
    argv = commands.switch({"1": "s2-eth1"}, number=2)
    assert {("--device-id", "9"), ("--grpc-server-addr", "127.0.0.1:50054"), ("-i", "1@s2-eth1")} <= set(pairwise(argv))


def tree(**fields: object) -> Config:
    return Config(job=JobSection(workers=4, racks=2), **fields)  # type: ignore[arg-type]


def test_fault_at_a_port_is_that_of_the_workers_own_leaf() -> None:
    faults = [FaultSection(where="switch", direction="send", drop=0.1)]
    assert [rule.port for rule in port_rules(faults, {2: 1, 3: 2}, {1: 3})] == [1, 2]


def test_fault_of_an_uplink_is_at_its_leafs_port() -> None:
    faults = [
        FaultSection(where="uplink", racks=(1,), direction="send", drop=0.1),
        FaultSection(where="host", drop=0.1),
    ]
    assert list(port_rules(faults, {0: 1, 1: 2}, {0: 3})) == []
    (rule,) = port_rules(faults, {2: 1, 3: 2}, {1: 3})
    assert (rule.port, rule.direction, rule.drop) == (3, "out", 0.1)


def test_topology_of_a_run_is_a_tree(tmp_path: Path) -> None:
    network = NetworkSection(link_mbps=100.0, uplink_mbps=400.0)
    made = json.loads(wanted_topology(tree(network=network), tmp_path / "a.toml", hosts=4))
    assert list(made["switches"]) == ["s0", "s1", "s2"]
    assert made["links"] == [
        *([f"h{n}", f"s{1 + (n - 1) // 2}-p{1 + (n - 1) % 2}", 0, 100.0] for n in range(1, 5)),
        *([f"s{n}-p3", f"s0-p{n}", 0, 400.0] for n in (1, 2)),
    ]
    (tmp_path / "own.json").write_text(json.dumps(made))
    own = NetworkSection(topology=Path("own.json"))
    assert json.loads(wanted_topology(tree(network=own), tmp_path / "a.toml", hosts=4)) == made
    with pytest.raises(ConfigError, match=r"own.json must have job.racks = 1 racks, got 2"):
        wanted_topology(Config(network=own), tmp_path / "a.toml", hosts=4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[event]]\nat_iteration = 3\nkill = 'switch'", "event.kill must be one of root, leaf-0, leaf-1, controller,"),
        ("[[event]]\nat_iteration = 3\nkill = 'leaf-2'", "got 'leaf-2'"),
        (
            "[[event]]\nat_iteration = 3\nstart = 'leaf-1'",
            "event.start: 'leaf-1' must not run at iteration 3, but it does",
        ),
        ("[network]\np4runtime_port = 65534", "network.p4runtime_port must leave ports up to 65535 for 3 switches"),
    ],
)
def test_settings_that_do_not_fit_a_tree_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"[job]\nworkers = 4\nracks = 2\n{text}")
    with pytest.raises(ConfigError, match=words):
        plan_jobs([path], target=None, driver=None, objectives=())


def test_slots_of_a_leaf_are_half_as_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job.slots and job.exact_slots must be at most 2048 together"):
        Config.parse("[job]\nworkers = 4\nracks = 2\nslots = 2048\nexact_slots = 64")


def test_tree_has_one_job(tmp_path: Path) -> None:
    paths = [tmp_path / "a.toml", tmp_path / "b.toml"]
    for number, path in enumerate(paths):
        path.write_text(f"[job]\nid = {number + 1}\nworkers = 4\nracks = 2")
    with pytest.raises(ConfigError, match=r"a.toml: job.racks must be 1 with several jobs, got 2"):
        plan_jobs(paths, target=None, driver=None, objectives=())
