"""PyTorch's own tests of a process group (torch.testing) on the backend "kofn"; each rank is a process, as in PyTorch.

They are the tests that PyTorch runs for gloo. Communicators go through a real switch; gloo goes over loopback. A test
that fails on gloo says nothing about another backend.
"""

import multiprocessing
import os
import sys
import traceback
import unittest
import warnings
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.update(BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR="/tmp", INIT_METHOD="file://", MASTER_ADDR="127.0.0.1")
# read when the module is imported

import torch
import torch.distributed as dist

with warnings.catch_warnings(action="ignore"):  # PyTorch warns about itself
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed import distributed_test

import kofn_torch
from tests.system.collectives.switched import Place

BY_NAME = {
    "test_get_backend": "the backend is called kofn",
    "test_monitored_barrier_gloo": "PyTorch allows monitored_barrier() to a backend called gloo",
    "test_monitored_barrier_gloo_subgroup": "PyTorch allows monitored_barrier() to a backend called gloo",
}
"""Tests that require the name gloo."""

LIMIT_S = 100.0
"""Time limit of one test."""


class OnKofn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests of one rank."""

    def call_dist_op(
        self, title: str, is_async: bool, op: Any, *given: Any, secondary_op_call: Any = None, **named: Any
    ) -> None:
        """Call without the profiler, which looks for gloo's events."""
        for ours in ("expect_event", "profile_cuda", "tensor_shapes"):
            named.pop(ours, None)
        works = [op(*given, **named), *([secondary_op_call()] if secondary_op_call else [])]
        for work in works if is_async else ():
            work.wait()


def names() -> list[str]:
    return [name for name in dir(OnKofn) if name.startswith("test_")]


def judge(name: str, place: Place, folder: Path) -> str:
    """Run a test and return its outcome: "passed", "skipped: ..." or "failed: ..."."""
    if name in BY_NAME:
        return f"skipped: {BY_NAME[name]}"
    outcome = run(name, "kofn", place, folder / "kofn")
    if outcome.startswith("failed") and run(name, "gloo", place, folder / "gloo").startswith("failed"):
        return f"skipped: on gloo it fails likewise: {_gist(outcome)}"
    return outcome


def run(name: str, backend: str, place: Place, folder: Path) -> str:
    """Run a test on one backend and return its outcome; each rank's log is in the folder."""
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(parents=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ends = [context.Pipe(duplex=False) for _ in place.locals]
    ranks = [
        context.Process(target=_one, args=(name, backend, place, rank, folder, said), daemon=True)
        for rank, (_, said) in enumerate(ends)
    ]
    for rank, (_, said) in zip(ranks, ends, strict=True):
        rank.start()
        said.close()
    try:
        outcomes = [_outcome(heard) for heard, _ in ends]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return max(outcomes, key=lambda outcome: outcome.startswith("failed"))


def _outcome(heard: Connection) -> str:
    if not heard.poll(LIMIT_S):
        return f"failed: nothing after {LIMIT_S:.0f} s"
    try:
        return str(heard.recv())
    except EOFError:
        return "failed: the process has ended"


def _gist(outcome: str) -> str:
    return outcome.removeprefix("failed: ").partition("\n")[0]


def _one(name: str, backend: str, place: Place, rank: int, folder: Path, said: Connection) -> None:
    os.environ["TEMP_DIR"] = str(folder)
    distributed_test.INIT_METHOD = f"file://{folder}/init_dir/shared"
    torch.set_num_threads(1)
    with (
        open(folder / f"rank-{rank}.log", "w") as log,
        redirect_stdout(log),
        redirect_stderr(log),
        place.join(rank, 20.0) as communicator,
    ):
        kofn_torch.use(communicator)
        limit_s = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
        method = f"file://{folder}/init_dir/group"
        dist.init_process_group(
            backend, init_method=method, world_size=len(place.locals), rank=rank, timeout=timedelta(seconds=limit_s)
        )
        said.send(_tried(name, rank))
        if dist.is_initialized():
            dist.destroy_process_group()


def _tried(name: str, rank: int) -> str:
    case = OnKofn(name)
    case.rank, case.file_name = rank, f"{os.environ['TEMP_DIR']}/file"
    common_utils.set_rng_seed()
    try:
        case._barrier()
        getattr(case, name)()
        case._barrier()
        return "passed"
    except (unittest.SkipTest, SystemExit) as skipped:
        return f"skipped: {_reason(skipped)}"
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return f"failed: rank {rank}: {type(error).__name__}: {str(error)[:300]}"


def _reason(skipped: BaseException) -> str:
    """Return the reason of a skip; PyTorch ends a rank's process with a code for each."""
    known = {str(skip.exit_code): skip.message for skip in TEST_SKIPS.values()}
    return known.get(str(skipped), str(skipped))
