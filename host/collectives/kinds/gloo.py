"""Ring all-reduce by PyTorch's gloo, where torch is installed: the baseline that users know.

What gloo does within a call it does not tell: all of that is `wait` in a call's Times, and the bytes are those of its
ring algorithm, 2 (n - 1) / n of the gradient each way, not counted ones.  gloo ends the process when sizes differ, and
sums whatever is not finite; so a few numbers from everyone are compared before each call.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.collectives.collective import Calls, Form, Reduced
from kofn.host.collectives.job_collective import JobCollective
from kofn.host.errors import CollectiveError
from kofn.host.stopwatch import OnShare, Stopwatch
from kofn.host.wire.packet import FORWARDED_PORT

TIMEOUT_S = 60.0
BEHIND = -1
"""The call of a worker that has closed."""

Status = tuple[int, int, int, int]
"""What everyone tells before a call: whether the arrays are fine, the shapes' digest, how many arrays, elements."""


class Gloo(Calls, JobCollective):
    """A Collective of the workers at `addresses`, by rank; returns when all are there.

    The first address may have a port (HOST:PORT), where its worker keeps what the workers must know of each other.
    CollectiveError where torch is not installed.  Of a call's progress only the end is told.
    """

    TRANSLATED = RuntimeError

    def __init__(self, rank: int, addresses: Sequence[str], *, job: int = 1, timeout_s: float = TIMEOUT_S) -> None:
        self.rank, self.workers = rank, len(addresses)
        self._torch = _torch()
        self._call = 0
        keeper, colon, port = addresses[0].partition(":")
        try:
            store = self._torch.distributed.TCPStore(
                keeper,
                int(port) if colon else FORWARDED_PORT,
                self.workers,
                is_master=rank == 0,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
            )
            self._store = self._torch.distributed.PrefixStore(f"kofn/{job}", store)
            self._enter(0)
            self._group = self._connect(addresses[rank].partition(":")[0], timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise CollectiveError(f"worker {rank} does not find the others: {_first_line(error)}") from error

    @classmethod
    def missing(cls) -> str:
        if importlib.util.find_spec("torch") is not None:
            return ""
        return f"it is PyTorch's, and {sys.executable} has no module torch: pip install torch, or use 'ring'"

    def close(self) -> None:
        if self._group is not None:
            self._failed = self._failed or "it is closed"
            try:
                self._enter(BEHIND)
            except RuntimeError:
                self._failed += "; worker 0 was gone by then"
            self._group = self._store = None

    def _connect(self, address: str, timeout: timedelta) -> Any:
        """To all others, from this address."""
        kind = self._torch.distributed.ProcessGroupGloo
        options = kind._Options()
        options._devices, options._timeout = [kind.create_device(hostname=address)], timeout
        return kind(self._store, self.rank, self.workers, options)

    def _reduce(self, arrays: Sequence[Floats], on_share: OnShare | None) -> Reduced:
        watch = Stopwatch()
        watch.turn("encode")
        self._call += 1
        form, flat, wrong = self._joined(arrays)
        watch.turn("wait")
        self._enter(self._call)
        statuses = self._tell((not wrong, form.digest, len(form.shapes), form.elements))
        if wrong:
            raise CollectiveError(f"worker {self.rank}: {wrong}")
        self._compare(statuses, form)
        self._group.allreduce([self._torch.from_numpy(flat)]).wait()
        watch.turn("sum")
        flat /= self.workers
        watch.turn("decode")
        reduced = form.split(flat)
        if on_share is not None:
            on_share(1.0)
        size = 2 * (self.workers - 1) * form.elements * 4 // self.workers
        return Reduced(arrays=reduced, count=self.workers, times=watch.times(), sent_bytes=size, received_bytes=size)

    @staticmethod
    def _joined(arrays: Sequence[Floats]) -> tuple[Form, Floats, str]:
        """All arrays as one, and what is wrong with them."""
        form = Form(())
        try:
            form = Form.of(arrays)
            flat = np.zeros(max(form.elements, 1), np.float32)
            form.join(arrays, flat)
        except CollectiveError as error:
            return form, np.zeros(1, np.float32), str(error)
        return form, flat, ""

    def _tell(self, status: Status) -> list[Status]:
        torch, size = self._torch, len(status)
        told = [torch.zeros(size, dtype=torch.int64) for _ in range(self.workers)]
        self._group.allgather([told], [torch.tensor(status, dtype=torch.int64)]).wait()
        return [tuple(numbers.tolist()) for numbers in told]

    def _compare(self, statuses: Sequence[Status], form: Form) -> None:
        """Everyone's arrays are fine, and of the same shapes."""
        for rank, (fine, digest, arrays, elements) in enumerate(statuses):
            if not fine:
                raise CollectiveError(f"worker {rank} gives arrays that cannot be reduced: it says why")
            if digest != form.digest:
                raise CollectiveError(
                    f"the workers' calls differ: worker {rank} gives {arrays} arrays with {elements} elements together,"
                    f" worker {self.rank} gives {form} with {form.elements}"
                )

    def _enter(self, call: int) -> None:
        """Write down for the others which call this worker is in."""
        self._store.set(str(self.rank), str(call))

    def _blame(self, error: Exception) -> str:
        """Who is missing, and what gloo says."""
        return f"{self._missing()} ({_first_line(error)})"

    def _missing(self) -> str:
        """Who has not come to this call, or has closed."""
        try:
            calls = [int(self._store.get(str(rank))) for rank in range(self.workers)]
        except RuntimeError:
            return "worker 0 is gone, who keeps what the workers know of each other"
        behind = [str(rank) for rank, call in enumerate(calls) if call < self._call]
        return f"worker {' and '.join(behind)} is gone or too late" if behind else "a worker is gone in mid-call"


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise CollectiveError(f"gloo is PyTorch's, which is not installed ({error}): pip install torch") from error


def _first_line(error: Exception) -> str:
    """gloo's own words, as far as they are of use."""
    return str(error).splitlines()[0].partition(" This is typically")[0]


gloo = Gloo
