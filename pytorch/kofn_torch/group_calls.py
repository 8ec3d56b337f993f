"""The baseline of a sharded optimizer: the same calls over a process group (gloo), without a switch."""

import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# torch.distributed.nn.functional keeps the process group that exists when it is imported, as the default of its
# functions. PyTorch's optimizers import this module. The kept group would never end, and a gloo thread that works while
# Python ends aborts the process. So the import comes first, while there is no group.
import torch.distributed.nn.functional

from kofn_host.arrays import Floats
from kofn_host.collectives import Array
from kofn_host.zero import Bytes, Unit


class GroupWork:
    """A running call of the group. When the call ends, `out` has its result."""

    def __init__(self, work: Any, out: torch.Tensor) -> None:
        self._work, self._out = work, out

    def result(self, timeout: float | None = None) -> Floats:
        self._work.wait()
        found: Floats = self._out.numpy()
        return found


class GroupCalls:
    """ExactCalls over a process group; PyTorch computes the sums."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.workers, self._group = dist.get_rank(group), dist.get_world_size(group), group
        self.order = 0
        """A checksum of the units of all calls, in order."""

    def all_reduce(self, values: Floats) -> Floats:
        mean = torch.from_numpy(values / np.float32(self.workers))
        dist.all_reduce(mean, group=self._group)
        found: Floats = mean.numpy()
        return found

    def reduce_scatter(self, values: Floats, unit: Unit) -> GroupWork:
        self._add_to_order("mean", unit)
        rows = torch.from_numpy(unit.padded(values, self.workers) / np.float32(self.workers)).reshape(-1)
        out = torch.empty(unit.chunk)
        return GroupWork(dist.reduce_scatter_single(out, rows, group=self._group, async_op=True), out)

    def gather_unit(self, shard: Floats, unit: Unit, out: Floats) -> GroupWork:
        self._add_to_order("gather", unit)
        target, own = torch.from_numpy(out).reshape(-1), torch.from_numpy(shard[unit.in_shard].copy())
        return GroupWork(dist.all_gather_single(target, own, group=self._group, async_op=True), target)

    def gather(self, values: Array) -> Array:
        own = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).reshape(-1).copy())
        rows = torch.empty(self.workers * own.numel(), dtype=torch.uint8)
        dist.all_gather_single(rows, own, group=self._group)
        found: Array = rows.numpy().view(values.dtype).reshape(self.workers, *values.shape)
        return found

    def broadcast(self, values: Array) -> Array:
        found = torch.from_numpy(values.copy())
        dist.broadcast(found, group_src=0, group=self._group)
        whole: Array = found.numpy()
        return whole

    def _add_to_order(self, call: str, unit: Unit) -> None:
        self.order = zlib.crc32(f"{call} {unit.begin}".encode(), self.order)

    # -- as a ChunkExchange

    def all_to_all(self, rows: Bytes) -> Bytes:
        given = torch.from_numpy(np.ascontiguousarray(rows))
        out = torch.empty_like(given)
        dist.all_to_all_single(out, given, group=self._group)
        found: Bytes = out.numpy()
        return found

    def all_gather(self, row: Bytes) -> Bytes:
        return self.gather(row)
