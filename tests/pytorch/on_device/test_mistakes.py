"""Deliberate mistakes in kofn_torch.staging: each is an edit of its text, and must show on the pretend accelerator.

A mistake shows by other values than those of a device that does all at once, or by a wait of the training thread.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kofn_torch.staging
from tests.pytorch import devices, pretend
from tests.pytorch.crew import group_of_one

pytestmark = pytest.mark.torch

if devices.KIND != "pretend":
    pytest.skip("a real device has no systematic modes", allow_module_level=True)

DEVICE = torch.device("pretend:0")
DEFAULT = torch.accelerator.current_stream(DEVICE)
TEXT = Path(kofn_torch.staging.__file__).read_text()
STEPS = 4

WAIT = "            self._out.wait_stream(torch.accelerator.current_stream(self.device))\n"
OUT_FIRST = "                host.copy_(values, non_blocking=True)\n"
OUT_LAST = "                copied = self._copied()\n"
OUT = OUT_FIRST + OUT_LAST
TAKEN, GIVEN = "            taken(host)\n", "            self.give(key, host)\n"
SYNC = "                copied.synchronize()\n"
BACK = "                values.copy_(host, non_blocking=True)\n"
DONE, CAUGHT = "                means.set_result(values)\n", "        except Exception as error:\n            means.set"
READ = "            if read is not None and not read.query():\n                read.synchronize()\n"
TO = "            found = host.to(self.device, non_blocking=True)\n"
EVENT = "            self._reads[key] = torch.accelerator.current_stream(self.device).record_event()\n"

MISTAKES: dict[str, dict[str, str]] = {
    "the copy out does not wait for backward's stream": {WAIT: ""},
    "the copy out waits for the default stream, not for backward's": {
        WAIT: WAIT.replace("torch.accelerator.current_stream(self.device)", "DEFAULT")
    },
    "the copy out is on backward's stream, its event on the other": {
        f"            with self._out:\n{OUT}": f"{OUT_FIRST[4:]}            with self._out:\n{OUT_LAST}"
    },
    "no thread waits for the copy out": {SYNC: "                pass\n"},
    "the event is recorded before the copy": {OUT: OUT_LAST + OUT_FIRST},
    "the event is recorded on another stream": {
        OUT: f"{OUT_FIRST}            with torch.Stream(self.device):\n{OUT_LAST}"
    },
    "the event is made and never recorded": {"        event.record()\n": ""},
    "the event is queried once, not waited for": {SYNC: "                copied.query()\n"},
    "a stream waits for the event, not the host (gloo's bug, pytorch#170239)": {
        SYNC: "                self._back.wait_event(copied)\n"
    },
    "the copy out waits in the hook": {OUT: OUT + "                copied.synchronize()\n"},
    "the copy out blocks": {OUT: OUT.replace("True", "False")},
    "host memory is not pinned": {", pin_memory=True": ""},
    "the source of a copy is freed while it is copied": {"self._hand_over, values,": "self._hand_over, None,"},
    "sent memory is given back before it is taken": {TAKEN + GIVEN: GIVEN + TAKEN},
    "means are copied back before the network has them": {
        "            if (found := reduced.value()) is not host:\n                host.copy_(found)\n": "",
        "reduce(host).add_done_callback(partial(self._copy_back, key, values, host, means))": (
            "reduced = reduce(host); self._copy_back(key, values, host, means, reduced)"
        ),
    },
    "the future has no devices": {'[] if device.type == "cpu" else [device]': "[]"},
    "the future is completed outside of the stream of the copy": {DONE + CAUGHT: DONE[4:] + CAUGHT},
    "the future is completed before the copy is queued": {
        BACK: DONE + BACK,
        DONE + CAUGHT: CAUGHT,
    },
    "the copy back is on a stream of its own, the future on another": {
        BACK: "                with torch.Stream(self.device):\n    " + BACK
    },
    "received memory is overwritten while the device reads it": {READ: ""},
    "the copy of a received mean is on another stream": {TO: "            with self._back:\n    " + TO},
    "the event of a received mean is recorded before its copy": {TO + EVENT: EVENT + TO},
    "a tensor is read before its copy has ended": {"detach().cpu()": 'detach().to("cpu", non_blocking=True)'},
    "a thread beside the training reads without waiting": {"torch.accelerator.synchronize(device)": "pass"},
    "the end of a backward pass is taken for DDP's end": {
        "engine.queue_callback(lambda: engine.queue_callback(function))": "engine.queue_callback(function)"
    },
}


def made(text: str) -> Any:
    module: Any = ModuleType("staging")
    module.DEFAULT = DEFAULT
    exec(compile(text, "staging", "exec"), module.__dict__)
    return module


def model() -> nn.Module:
    torch.manual_seed(3)
    equal = [layer for _ in range(4) for layer in (nn.Linear(32, 32, bias=False), nn.GELU())]
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), *equal, nn.Linear(32, 4)).to(DEVICE)


class Run:
    """A training by staging.py's text; `views`: gradients are views of buckets, `slow`: the network begins when all
    buckets are handed over, else it has ended before the next one is."""

    def __init__(self, text: str, views: bool, slow: bool) -> None:
        self.module, self.views, self.slow = made(text), views, slow
        self.staging = self.module.Staging(DEVICE, self.failed)
        self.error: Exception | None = None
        self.handed, self.sent = threading.Event(), threading.Event()
        self.network = ThreadPoolExecutor(1)
        self.seen, self.waits = list[list[float]](), 0

    def failed(self, error: Exception) -> None:
        self.error = error

    def reduced(self, host: torch.Tensor) -> Any:
        future = torch.futures.Future()

        def work() -> None:
            if self.slow:
                self.handed.wait(5)
            future.set_result(host.mul_(0.5).add_(0.25))  # the other worker's values are 0.5

        self.network.submit(work)
        return future

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        before = pretend.waits()
        future = self.staging.reduce(bucket.index(), bucket.buffer(), self.reduced)
        self.waits += pretend.waits() - before
        if bucket.is_last():
            self.module.after_backward(self.passed)
            self.handed.set()
        while not self.slow and not future.done():
            time.sleep(0)
        return future

    def passed(self) -> None:
        self.end = [each.grad.clone() for each in self.ddp.parameters()]

    def taken(self, host: torch.Tensor) -> None:
        self.sent.wait(1)
        self.seen.append(host.tolist())

    def train(self) -> list[Any]:
        self.ddp = DistributedDataParallel(model(), bucket_cap_mb=0.003, gradient_as_bucket_view=self.views)
        self.ddp.register_comm_hook(None, self.hook)
        optimizer = torch.optim.SGD(self.ddp.parameters(), 0.05, momentum=0.9)
        for step in range(STEPS):
            self.others(step)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            given = torch.randn(6, 8, generator=torch.Generator().manual_seed(step))
            self.handed.clear()
            self.ddp(given.to(DEVICE, non_blocking=True)).square().mean().backward()
            optimizer.step()
        with ThreadPoolExecutor(1) as beside:
            beside.submit(self.module.settle, DEVICE).result()
            read = beside.submit(lambda: [each.detach().cpu().tolist() for each in self.ddp.parameters()]).result()
        self.staging.close()
        self.network.shutdown()
        ends = [each.cpu().tolist() for each in self.end]
        return [read, ends, self.seen, [str(self.error)]]

    def others(self, step: int) -> None:
        """Use send(), receive() and on_host() beside the training."""
        values = torch.full((64,), step + 1.0).to(DEVICE)
        self.sent.clear()
        for factor in (1, 2):
            before = pretend.waits()
            self.staging.send("values", values * factor, self.taken)
            self.waits += pretend.waits() - before
            time.sleep(0.002)  # the first is being taken
        self.sent.set()
        both = [self.staging.receive("mean", torch.full((8,), step + at + 1.0)) for at in range(2)]
        self.seen += [self.module.on_host(values * 3).tolist(), *(each.cpu().tolist() for each in both)]


MODES = [(pretend.LATE, None), *((pretend.HASTY, each) for each in ("training", "out", "back"))]
CASES = [*product((False, True), (False, True))]


def trained(text: str, views: bool, slow: bool, which: int, slowest: str | None) -> tuple[list[Any], int]:
    """Return a run's values, from a separate stream, and the number of waits in its training thread."""
    own = torch.Stream(DEVICE)
    run = Run(text, views, slow)
    streams = {"training": own, "out": run.staging._out, "back": run.staging._back, None: 0}
    pretend.mode(which, streams[slowest])
    own.wait_stream(DEFAULT)
    with own:
        found = run.train()
    torch.accelerator.synchronize()
    found[2].sort(key=str)
    return found, run.waits


@cache
def wanted(views: bool, slow: bool) -> str:
    return str(trained(TEXT, views, slow, pretend.EAGER, None)[0])


def shown(text: str) -> Iterator[str]:
    """Yield the runs in which a text shows as a mistake."""
    for (which, slowest), case in product(MODES, CASES):
        try:
            found, waits = trained(text, *case, which, slowest)
        except RuntimeError as error:
            yield f"error {error}"
            continue
        if str(found) != wanted(*case):
            yield f"values {which} {slowest} {case}"
        elif waits:
            yield f"waits {which} {slowest} {case}"


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    group_of_one()
    yield
    devices.start()


def test_staging_is_right_in_every_mode() -> None:
    assert list(shown(TEXT)) == []


def test_at_least_nineteen_mistakes_are_known() -> None:
    assert len(MISTAKES) >= 19


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_shows(mistake: str) -> None:
    text = TEXT
    for old, new in MISTAKES[mistake].items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert next(shown(text), None) is not None
