"""The public modules of kofn_host and `kofn`: their names, and the users that import other modules."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from kofn_common.exports import exports
from tests.workspace import ROOT, imported, modules

PACKAGES = ("collectives", "schedule", "training", "worker", "workload", "zero")
"""Packages of kofn_host whose stubs list their public names."""

PUBLIC = {"kofn_host", *(f"kofn_host.{name}" for name in ("arrays", "errors", *PACKAGES))}

USERS = ("bench", "examples", "kofn", "pytorch", "tests")

OWN = ("tests/host",)
"""Tests of kofn_host itself, which import any module of it."""

FRIENDS = {
    "bench/agent.py": (
        "sends packets over its own transport",
        "engine.pacing_rate transport.transport transport.udp",
    ),
    "bench/codec.py": (
        "measures a codec, the ledger and packed lanes",
        "compression.aggregate compression.codec compression.ledger compression.ledger_native "
        "compression.ledger_storage compression.plan kernels.lanes protocol.block_layout protocol.instructions "
        "protocol.results",
    ),
    "bench/ledger.py": (
        "measures the ledger",
        "compression.codecs.fixed_point compression.encoder compression.ledger compression.ledger_native "
        "compression.ledger_storage kernels.lanes",
    ),
    "bench/schedule_search.py": (
        "measures the search",
        "schedule.agreed_search schedule.search",
    ),
    "bench/switch_loop.py": (
        "packs lanes by hand",
        "kernels.lanes",
    ),
    "kofn/doctor": (
        "probes a switch with single packets",
        "kernels.lanes transport.datagrams",
    ),
    "kofn/run/native.py": (
        "compiles the C before the workers start",
        "kernels.kernel native",
    ),
    "kofn/sim": (
        "drives the protocol, the encoder and the training in virtual time: a declared friend",
        "agent.driver agent.following agent.missed_results collectives.parameter_server collectives.passage "
        "compression.age_weight compression.aggregate compression.alignment compression.encoder "
        "compression.ledger_accounts compression.plan engine.link_pacing engine.pacing_rate kernels.sample "
        "native protocol.block_layout protocol.core protocol.instructions protocol.leaf protocol.results "
        "protocol.slots schedule.search stopwatch training.alone training.attempts training.divergence "
        "training.loop training.peer_to_peer transport.datagrams transport.fault_injection transport.send_queue "
        "transport.udp workload.evaluation workload.layered workload.replica workload.workloads.accelerator",
    ),
    "tests/dataplane": (
        "compares the P4 program with the slots and lanes of workers",
        "kernels.lanes protocol.slots transport.event_loop",
    ),
    "tests/run/test_collectives.py": (
        "runs the parameter server's program and a bare training",
        "collectives.parameter_server training.loop",
    ),
    "tests/run/test_going_back.py": (
        "reads a checkpoint's manifest",
        "checkpoint.folder",
    ),
    "tests/sim": (
        "compares the simulation with the parts that it drives",
        "collectives.kinds.ring compression.rate engine.pacing_rate kernels.sample protocol.block_layout "
        "protocol.instructions protocol.leaf protocol.results protocol.slots training.loop transport.fault_injection "
        "workload.stragglers.drawn",
    ),
    "tests/system": (
        "injects faults between workers and switch, and looks into agents",
        "agent.missed_results collectives.call compression.encoder compression.pieces membership.peer "
        "transport.event_loop transport.fault_injection transport.transport zero.shards",
    ),
    "tests/pytorch": (
        "replaces controller and peers, and looks into ledgers",
        "collectives.in_network compression.encoder compression.ledger_native compression.ledger_state "
        "compression.ledger_storage compression.residual protocol.results transport.event_loop transport.udp "
        "zero.shards",
    ),
}
"""Users of private modules by path, the longest that fits; why, and the modules. These lists may only shrink."""


def users() -> Iterator[str]:
    """Yield the paths of files outside of kofn_host that may import it."""
    for folder in USERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(OWN):
                yield name


def private(name: str) -> set[str]:
    """Return the private modules of kofn_host that a file imports."""
    found = set()
    for target in imported(ROOT / name):
        if target.partition(".")[0] == "kofn_host":
            module = target if target in modules() else target.rpartition(".")[0]
            found |= {module} - PUBLIC
    return found


@pytest.mark.slow
def test_only_friends_import_private_modules() -> None:
    wanted = {path: set(listed.split()) for path, (_, listed) in FRIENDS.items()}
    found = defaultdict[str, set[str]](set)
    for name in users():
        if used := {module.removeprefix("kofn_host.") for module in private(name)}:
            found[max((path for path in FRIENDS if name.startswith(path)), key=len, default=name)] |= used
    assert dict(found) == wanted


@pytest.mark.parametrize("package", PACKAGES)
def test_public_name_exists_and_is_no_module(package: str) -> None:
    """A name that is a module of the package too would be the module as soon as that is imported."""
    found = import_module(f"kofn_host.{package}")
    files = {path.stem for path in Path(str(found.__file__)).parent.iterdir()}
    assert found.__all__ == sorted(exports(str(found.__file__)))
    assert not files & set(found.__all__)
    for name in found.__all__:
        assert name in dir(found)
        if "Torch" not in name or find_spec("torch"):
            getattr(found, name)


def test_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(AttributeError, match=r"'kofn_host.workload' has no attribute 'Metrik': it has ACCURACY, Batch"):
        _ = import_module("kofn_host.workload").Metrik


def test_public_package_loads_no_module_by_itself() -> None:
    code = "import sys, kofn_host.training; sys.exit(', '.join(name for name in sys.modules if 'kofn_host.' in name))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.split() == ["kofn_host.training"]


ALONE = """
import sys
sys.modules["kofn"] = None  # importing it fails, as where it is not installed
from kofn_host.training import load_codecs
from kofn_host.workload import load_workload
from kofn_common.config.schema import Config
(codec,) = load_codecs("narrow:Narrow", workers=4).values()
workload = load_workload(Config.of({"model": {"workload": "mine:Mine"}}), 0)
print(type(codec).__name__, type(workload).__name__)
"""

MINE = """
import numpy as np
from kofn_host.workload import Workload


class Mine(Workload):
    metric = None

    def __init__(self, config, rank):
        self.parameters = np.zeros(1, np.float32)

    def gradient(self, iteration, batch=0):
        return None, self.parameters
"""


def test_worker_that_is_installed_alone_loads_a_users_classes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "narrow.py").write_text((ROOT / "examples" / "codecs" / "narrow.py").read_text())
    run = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("Narrow Mine\n", "")


USES = (
    "Codec",
    "DataPlane",
    "Objective",
    "PacketCollective",
    "PeerCommunicator",
    "Policy",
    "StragglerSource",
    "Workload",
)


@pytest.mark.parametrize("name", USES)
def test_class_to_derive_from_is_a_name_of_kofn(name: str) -> None:
    assert isinstance(getattr(import_module("kofn"), name), type)


def test_examples_and_guides_name_no_module_below_kofn() -> None:
    """A reader copies them, and needs to know `kofn` and `kofn_torch` alone. The columns and claims of kofn's own
    experiments use more."""
    own = ROOT / "examples" / "experiments"
    files = [path for path in sorted((ROOT / "examples").rglob("*.py")) if path.parent != own]
    code = [path.read_text() for path in files]
    guides = [path.read_text() for path in sorted((ROOT / "docs" / "howto").glob("*.md"))]
    lines = [
        line for text in code + guides for line in text.splitlines() if line.startswith(("from kofn", "import kofn"))
    ]
    assert {line.split()[1] for line in lines} == {"kofn", "kofn_torch", "kofn_torch.checkpoint"}
