"""Collectives by PyTorch's gloo, if torch is installed: a well-known baseline.

gloo does not report its internal times and bytes: a call's time is counted as `wait`, and the bytes are computed from
gloo's ring algorithm (PeerCommunicator._computed).
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from kofn_host.collectives.call import Array
from kofn_host.collectives.communicator import Task
from kofn_host.collectives.peers import PeerCommunicator, Stalled
from kofn_host.collectives.work import WorkOutcome
from kofn_host.errors import CollectiveError


class Gloo(PeerCommunicator):
    """A Communicator that uses a ProcessGroupGloo; CollectiveError if torch is not installed."""

    _group: Any = None

    @classmethod
    def missing(cls) -> str:
        if importlib.util.find_spec("torch") is not None:
            return ""
        return f"it is PyTorch's, and {sys.executable} has no module torch: pip install torch, or use 'ring'"

    def _prepare(self, host: str) -> str:
        try:
            self._torch: Any = importlib.import_module("torch")
        except ImportError as error:
            raise CollectiveError(f"gloo is PyTorch's, which is not installed ({error}): pip install torch") from error
        self._host = host
        if self.rank != 0:
            return host
        self._store = self._opened_store(host, 0, timedelta(seconds=self._timeout_s))
        return f"{host}:{self._store.port}"

    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        host, _, port = cards[0].partition(":")
        kind, limit = self._torch.distributed.ProcessGroupGloo, timedelta(seconds=self._timeout_s)
        try:
            if self.rank != 0:
                self._store = self._opened_store(host, int(port), limit)
            options = kind._Options()
            options._devices, options._timeout = [kind.create_device(hostname=self._host)], limit
            self._group = kind(self._store, self.rank, self.workers, options)
        except RuntimeError as error:
            raise CollectiveError(f"gloo does not connect the workers: {_first_line(error)}") from error

    def _opened_store(self, host: str, port: int, limit: timedelta) -> Any:
        """Return the store of the workers' addresses, which worker 0 keeps; a `port` of 0 is any free port."""
        return self._torch.distributed.TCPStore(
            host, port, self.workers, is_master=self.rank == 0, timeout=limit, wait_for_workers=False
        )

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        watch = task.watch
        watch.turn("encode")
        call, out = task.call, task.out
        try:
            match call.kind:
                case "all_reduce":
                    out[...] = task.given
                    work = self._group.allreduce([self._tensor(out)])
                case "reduce_scatter":
                    rows = self._tensor(np.ascontiguousarray(task.given)).reshape(self.workers, -1)
                    work = self._group._reduce_scatter_base(self._tensor(out), rows.reshape(-1))
                case "all_gather":
                    given = self._tensor(np.ascontiguousarray(task.given))
                    work = self._group._allgather_base(self._tensor(out), given)
                case _:
                    out[...] = task.given
                    options = self._torch.distributed.BroadcastOptions()
                    options.rootRank = call.root
                    work = self._group.broadcast([self._tensor(out)], options)
            watch.turn("wait")
            work.wait()
        except RuntimeError as error:
            raise Stalled(_first_line(error)) from error
        return self._computed(task)

    def _tensor(self, array: Array) -> Any:
        """Return a flat tensor of the same memory; bfloat16 needs a detour: torch accepts only NumPy's own dtypes."""
        if array.dtype.name == "bfloat16":
            return self._torch.from_numpy(array.reshape(-1).view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array.reshape(-1))

    def _interrupt(self) -> None:
        if self._group is not None:
            self._group.abort()

    def _release(self) -> None:
        self._group = self._store = None


def _first_line(error: Exception) -> str:
    """Return the informative part of gloo's message."""
    return str(error).splitlines()[0].partition(" This is typically")[0]


gloo = Gloo
