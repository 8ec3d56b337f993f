"""The hook with workers that sum among themselves: the comparison for the switch, which differs only in how it sums."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn

import kofn_torch
from examples.experiments.compare_cells import GPT_ELEMENTS
from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.collectives import Ring
from kofn_host.errors import GradientError, HostError
from kofn_host.training import JobCoding
from kofn_host.transport.event_loop import EventLoop
from kofn_torch.errors import TorchError
from kofn_torch.peers import BucketSum, CommunicatorSum, GroupSum, PeerExchange, PeerReducer
from kofn_torch.replica import ModelReplica
from kofn_torch.scripts import gpt
from tests.pytorch.crew import ddp, gloo_group, group_of_one, parameters_of
from tests.system.collectives.crews import addresses
from tests.system.collectives.switched import HOSTS

pytestmark = pytest.mark.torch

STEPS = 5


@dataclass
class PeerJob:
    """A TorchJob without a controller, whose workers sum through `connect`."""

    config: Config
    rank: int
    metrics: Path
    connect: Callable[[], BucketSum]

    def join(self, coding: JobCoding, replica: ModelReplica, group: Any) -> PeerReducer:
        absent: Any = None
        reducer, self.loop = PeerReducer(self.connect, coding.planner.first()), EventLoop()
        self.loop.run(reducer.join_first(1, 0, absent))
        self.reducer = reducer
        return reducer

    def report(self, report: kofn_pb2.Report) -> None:
        """Do nothing: no controller takes the report."""

    def fail(self, error: HostError) -> None:
        self.reducer.fail(error)

    def leave(self, reason: str) -> None:
        self.loop.run(self.reducer.close())
        self.loop.close()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def train(model: Any, rank: int, session: kofn_torch.Session | None = None) -> bytes:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        loss = model(torch.full((4, 8), (rank + step) / 8)).square().mean()
        if session is not None:
            session.loss = loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if session is not None:
        session.close()
    return parameters_of(model)


@pytest.mark.parametrize("collective", ["gloo", "ring"])
def test_training_equals_that_of_ddp_alone(collective: str, tmp_path: Path) -> None:
    there, stores = addresses(HOSTS), (dist.HashStore(), dist.HashStore())
    config = Config.of(
        {
            "job": {"workers": HOSTS, "collective": collective},
            "run": {"max_iterations": STEPS},
            "model": {"compute_ms": 0},
            "torch": {"script": "train.py"},
        }
    )

    def one(rank: int) -> tuple[bytes, bytes]:
        plain, hooked = (
            ddp(layers, process_group=group, bucket_cap_mb=0.002)
            for group in [gloo_group(store, rank, HOSTS) for store in stores]
        )

        def connect() -> BucketSum:
            return GroupSum(hooked.process_group) if collective == "gloo" else CommunicatorSum(Ring(rank, there))

        wanted = train(plain, rank)
        job = PeerJob(config, rank, tmp_path / f"worker-{rank}.jsonl", connect)
        return wanted, train(hooked, rank, kofn_torch.ddp_hook(hooked, job=job))

    with ThreadPoolExecutor(HOSTS) as pool:
        trained = list(pool.map(one, range(HOSTS)))
    for wanted, found in trained:
        assert torch.frombuffer(bytearray(found), dtype=torch.float32).allclose(
            torch.frombuffer(bytearray(wanted), dtype=torch.float32), rtol=1e-5
        )
        assert found == trained[0][1]
    lines = [json.loads(line) for line in (tmp_path / "worker-0.jsonl").read_text().splitlines()[:-1]]
    assert [(line["iteration"], line["count"]) for line in lines] == [(step, HOSTS) for step in range(1, STEPS + 1)]
    assert all(line["wait_s"] > 0 for line in lines)


def test_iterations_allocate_no_memory_for_gradient_and_means() -> None:
    """The switch allocates none either, so the comparison is fair."""
    group_of_one()
    absent: Any = None
    coding = JobCoding.of(JobSection(), CompressSection(), 4)
    reducer, loop = PeerReducer(lambda: GroupSum(dist.group.WORLD), coding.planner.first()), EventLoop()
    loop.run(reducer.join_first(1, 0, absent))
    exchange = PeerExchange(reducer, 4, 1)
    places = set()
    for iteration in (1, 2):
        exchanged = exchange.begin(iteration)
        exchange.reduce([(0, 4)], torch.full((4,), float(iteration))).wait()
        (update,) = exchanged.result(10).updates
        assert update.mean.tolist() == exchange.gradient().tolist() == [iteration] * 4
        places.add((update.mean.ctypes.data, exchange.gradient().ctypes.data))
    assert len(places) == 1
    loop.close()


def test_non_finite_gradient_is_refused(tmp_path: Path) -> None:
    config = Config.of(
        {"job": {"workers": 1, "collective": "gloo"}, "model": {"compute_ms": 0}, "torch": {"script": "train.py"}}
    )
    model = ddp(layers)
    job = PeerJob(config, 0, tmp_path / "worker-0.jsonl", lambda: GroupSum(model.process_group))
    kofn_torch.ddp_hook(model, job=job)
    with pytest.raises(GradientError, match=r"gradient element \d+ must be finite, got nan"):
        model(torch.full((4, 8), float("nan"))).sum().backward()
    with pytest.raises(GradientError, match=r"gradient element \d+ must be finite, got nan"):
        model(torch.ones(4, 8))


def test_gloo_needs_a_group_of_all_workers(tmp_path: Path) -> None:
    config = Config.of({"job": {"workers": HOSTS, "collective": "gloo"}, "torch": {"script": "train.py"}})
    absent: Any = None
    with pytest.raises(TorchError, match=r"WORLD_SIZE must be job.workers \(\d\) with job.collective = 'gloo'.* got 1"):
        kofn_torch.ddp_hook(ddp(layers), job=PeerJob(config, 0, tmp_path / "worker-0.jsonl", absent))


def test_compared_model_has_the_stated_number_of_elements() -> None:
    assert sum(each.numel() for each in gpt.GPT().parameters()) == GPT_ELEMENTS
    text, wanted = next(gpt.batches(0))
    assert gpt.GPT()(text).shape == (*wanted.shape, gpt.BYTES)
