"""The calls of a sharded optimizer: through the job's switch, or over a process group."""

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch.distributed as dist

from kofn_common.config.model import Average
from kofn_common.results.memory import Memory
from kofn_host.collectives import Array
from kofn_host.worker import ElasticCalls, GroupJob
from kofn_host.zero import CODECS, CommunicatorCalls, CompressedMean, ExactCalls, SwitchMean, TwoSidedMean, ZeroSettings
from kofn_torch.errors import TorchError, place_errors
from kofn_torch.group_calls import GroupCalls


class ZeroJob(Protocol):
    """The methods of a job that a sharded optimizer needs."""

    def connect(self, units: Sequence[int], settings: ZeroSettings) -> tuple[ExactCalls, CompressedMean | None]:
        """Wait for all workers; `units` has each unit's number of elements. Return exact calls, and a compressed
        mean if gradients have 8 bits or 1 bit."""

    def stepped(self, shared: Array, memory: Memory) -> None:
        """Note the end of a step; `shared` holds values that are equal at all workers, `memory` is this worker's."""


class SwitchedZero:
    """The job of the environment (docs/howto/zero.md), until the process ends."""

    def connect(self, units: Sequence[int], settings: ZeroSettings) -> tuple[ExactCalls, CompressedMean | None]:
        with place_errors():
            self._job = GroupJob(*_group(), elastic_calls(units, settings))
        communicator = self._job.communicator
        compressed = SwitchMean(communicator, sum(units)) if settings.bits < 32 else None
        return CommunicatorCalls(communicator), compressed

    def stepped(self, shared: Array, memory: Memory) -> None:
        self._job.stepped(shared, memory=memory)


class GroupZero:
    """The baseline, over a process group: float32, or DeepSpeed's two-sided compressed_allreduce."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def connect(self, units: Sequence[int], settings: ZeroSettings) -> tuple[ExactCalls, CompressedMean | None]:
        if settings.residual != "exact":
            raise TorchError(f'residual must be "exact" with through = "gloo", got {settings.residual!r}')
        if not dist.is_initialized():
            raise TorchError(
                'through = "gloo" must have a process group, got none: call init_process_group("gloo") first'
            )
        if settings.bits == 8:
            raise TorchError('bits must be 1 (two-sided) or 32 with through = "gloo", got 8')
        self._calls = calls = GroupCalls(self._group)
        return calls, TwoSidedMean(calls, sum(units)) if settings.bits == 1 else None

    def stepped(self, shared: Array, memory: Memory) -> None:
        """Compare the workers, because gloo cannot distinguish two calls of equal size."""
        told = self._calls.gather(np.array([self._calls.order, zlib.crc32(shared.data)], np.int64))
        for rank, (order, step) in enumerate(told.tolist()):
            if order != told[0][0]:
                raise TorchError(
                    f"worker {rank} must call its layers in worker 0's order in stages 2 and 3 over gloo, got another"
                    " order"
                )
            if step != told[0][1]:
                raise TorchError(
                    f"worker {rank} must step as worker 0 does, got another result: check learning rates and buffers"
                )


def elastic_calls(units: Sequence[int], settings: ZeroSettings) -> ElasticCalls:
    """Return the settings of the compressed means. A sum of momenta is divided by its contributors, because a late
    momentum enters no residual."""
    if settings.bits == 32:
        return ElasticCalls()
    average: Average = "contributors" if settings.votes_on_momentum else "gradients"
    codec = CODECS[settings.bits]
    return ElasticCalls(
        units=tuple(units), scattered=settings.stage > 1, codec=codec, average=average, residual=settings.residual
    )


def _group() -> tuple[int, int]:
    """Return rank and size of the process group; without one each worker is alone."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
