"""PyTorch's own tests of a process group (torch.testing), on the backend "kofn": each rank a thread.

They are those that PyTorch runs for gloo, less what needs processes, CUDA or gloo itself.
"""

import os
import threading
import unittest
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

os.environ.update(BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR="/tmp", INIT_METHOD="env://")  # read when it is imported

import torch
import torch.distributed as dist

with warnings.catch_warnings(action="ignore"):  # PyTorch's of itself
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed.distributed_test import DistributedTest
    from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg, _uninstall_threaded_pg

import kofn.torch
from kofn.host.collectives.communicator import Communicator
from kofn.torch.process_group import SwitchGroup

TIMEOUT = timedelta(seconds=5)

Join = Callable[[int], Communicator]


class OnKofn(TestCase, DistributedTest._DistTestBase):
    """One rank's."""

    rank: int
    world_size: int

    def _barrier(self, *given: Any, **named: Any) -> None:
        dist.barrier()

    def call_dist_op(
        self,
        title: str,
        is_async: bool,
        op: Callable[..., Any],
        *given: Any,
        expect_event: bool = True,
        secondary_op_call: Callable[[], Any] | None = None,
        profile_cuda: bool = False,
        tensor_shapes: Any = None,
        **named: Any,
    ) -> None:
        """Without the profiler, which is of one thread."""
        works = [op(*given, **named), *([secondary_op_call()] if secondary_op_call else [])]
        for work in works if is_async else ():
            work.wait()


@contextmanager
def threads_as_ranks() -> Iterator[None]:
    """Each thread has process groups of its own."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    try:
        yield
    finally:
        _uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)


def run(name: str, join: Join, ranks: int) -> tuple[str, dict[tuple[str, str], int]]:
    """What a test came to: "passed", "skipped: ..." or "failed: ..."; and rank 0's calls."""
    store = dist.HashStore()

    def one(rank: int) -> tuple[str, dict[tuple[str, str], int]]:
        with join(rank) as communicator:
            kofn.torch.use(communicator)
            dist.init_process_group("kofn", rank=rank, world_size=ranks, store=store)
            group = dist.group.WORLD
            assert isinstance(group, SwitchGroup)
            case = OnKofn(name)
            case.rank, case.world_size, case._tls = rank, ranks, threading.local()
            case._tls.precision, case._tls.rel_tol = TestCase._precision, TestCase._rel_tol
            try:
                getattr(case, name)()
                outcome = "passed"
            except (unittest.SkipTest, SystemExit) as skipped:
                outcome = f"skipped: {_reason(skipped)}"
            except Exception as error:
                outcome = f"failed: {type(error).__name__}: {str(error)[:300]}"
            if outcome == "passed":
                dist.barrier()
            dist.destroy_process_group()
            return outcome, dict(group.calls)

    with ThreadPoolExecutor(ranks) as pool:
        outcomes = list(pool.map(one, range(ranks)))
    worst = max((outcome for outcome, _ in outcomes), key=lambda outcome: outcome[0] == "f")
    return worst, outcomes[0][1]


def _reason(skipped: BaseException) -> str:
    """PyTorch ends a rank's process with a code for each reason."""
    known = {str(skip.exit_code): skip.message for skip in TEST_SKIPS.values()}
    return known.get(str(skipped), str(skipped))


def names() -> list[str]:
    return [name for name in dir(DistributedTest._DistTestBase) if name.startswith("test_")]
