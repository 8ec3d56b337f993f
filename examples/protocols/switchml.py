"""SwitchML (Sapio et al., NSDI 2021) as a collective: algorithm 4 here, algorithm 3 in the switch (switchml.p4).

docs/reference/switchml.md compares it with the paper.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kofn import (
    FLOATING,
    ONLY_SWITCH,
    SUMS,
    Array,
    Blocks,
    DataPlane,
    JobSection,
    PacketCollective,
    SlotLayout,
    Speaker,
    SwitchEntry,
    SwitchRole,
    Task,
    WorkOutcome,
    addressing,
    exact,
    forwarding,
)

Floats64 = npt.NDArray[np.float64]

HEADER = struct.Struct("!BBBHIB")  # switchml_h: job, worker, version, slot, block, exponent
WORDS = 4
LANES = 64 * WORDS
BIAS = 127
"""An exponent e travels as e + BIAS; 0: the next block has zeros alone, or there is none."""


class SwitchmlPlane(DataPlane):
    """The program, and its entries for each job."""

    program = Path(__file__).with_name("switchml.p4")
    port = 0x534D
    counters: ClassVar = {"ingress.packets": ("added", "completed", "answered", "dropped")}

    def entries(self, layouts: Sequence[SlotLayout], role: SwitchRole = ONLY_SWITCH) -> Iterator[SwitchEntry]:
        yield from forwarding(layouts)
        yield from addressing(layouts)
        for layout in layouts:
            job, match = layout.job, {"hdr.switchml.job": layout.job.id}
            slots = {"base": layout.base, "mask": job.slots - 1}
            yield exact("ingress.jobs", match, "ingress.set_job", group=job.id, workers=job.workers, **slots)

    def slot_bits(self, job: JobSection) -> int:
        """Return those of both versions: vector, bitmap, count and exponent."""
        return 2 * (32 * LANES + 64 + 8 + 8)


class Pool:
    """A worker's view of its job's slots, over all calls: each slot's version, and the number of the next block."""

    def __init__(self, job: int, worker: int, slots: int, rto_s: float) -> None:
        self.job, self.worker, self.rto_s = job, worker, rto_s
        self.versions = [0] * slots
        self.next = 0


class PoolSpeaker(Speaker):
    """Sums blocks of 32-bit lanes. Block b uses slot b mod s, after block b - s."""

    rounds = 0
    """Blocks of each slot, before its first one, that have an exponent alone."""

    def __init__(self, blocks: Blocks, pool: Pool) -> None:
        super().__init__(blocks)
        self._pool, self._slots = pool, min(len(pool.versions), len(blocks))
        self._first = pool.next + self.rounds * self._slots  # the number of block 0
        pool.next = self._first + len(blocks)
        self._open: dict[int, tuple[float, int, bytes]] = {}  # by slot: deadline, number and packet, oldest first

    def begin(self, now_s: float) -> Iterator[bytes]:
        for slot in range(self._slots):
            yield self._sent(slot, slot - self.rounds * self._slots, 0, now_s)

    def receive(self, packet: bytes, now_s: float) -> Iterator[bytes]:
        _, _, _, slot, number, exponent = HEADER.unpack_from(packet)
        if slot not in self._open or self._open[slot][1] != number:
            return  # a result that came twice
        del self._open[slot]
        self._pool.versions[slot] ^= 1
        block = number - self._first
        if block >= 0:
            self.close(block, packet[HEADER.size :])
        if block + self._slots < len(self.blocks):
            yield self._sent(slot, block + self._slots, exponent, now_s)
        self._set_deadline()

    def expire(self, now_s: float) -> Iterator[bytes]:
        for slot in [slot for slot, (deadline_s, _, _) in self._open.items() if deadline_s <= now_s]:
            self.retransmissions += 1
            yield self._again(slot, self._open[slot][1:], now_s)

    def values(self, block: int, exponent: int) -> bytes:
        """Return a block's lanes, given the largest exponent of all workers for it."""
        return self.blocks[block].tobytes()

    def exponent(self, block: int) -> int:
        """Return this worker's exponent for a block."""
        return 0

    def _sent(self, slot: int, block: int, exponent: int, now_s: float) -> bytes:
        """Return the packet of a block, which has the exponent of the slot's next block too."""
        following = block + self._slots
        next_exponent = self.exponent(following) if following < len(self.blocks) else 0
        pool, number = self._pool, self._first + block
        header = HEADER.pack(pool.job, pool.worker, pool.versions[slot], slot, number, next_exponent)
        lanes = self.values(block, exponent) if block >= 0 else bytes(self.blocks.shape[1])
        return self._again(slot, (number, header + lanes), now_s)

    def _again(self, slot: int, number_packet: tuple[int, bytes], now_s: float) -> bytes:
        """Start the slot's timer, which is now the youngest."""
        self._open.pop(slot, None)
        self._open[slot] = (now_s + self._pool.rto_s, *number_packet)
        self._set_deadline()
        return number_packet[1]

    def _set_deadline(self) -> None:
        self.deadline_s = next((deadline_s for deadline_s, _, _ in self._open.values()), float("inf"))


class FloatSpeaker(PoolSpeaker):
    """Sums floating values in fixed point. The scale of a block comes with the result of the slot's block before it."""

    rounds = 1

    def __init__(self, rows: Floats64, pool: Pool, workers: int) -> None:
        super().__init__(np.zeros((len(rows), 4 * rows.shape[1]), np.uint8), pool)
        self._rows, self._workers = rows, workers
        self._exponents = np.maximum(np.frexp(np.abs(rows).max(axis=1))[1], 1 - BIAS)  # float32 has 128 at most
        self._empty = ~rows.any(axis=1)
        self.scales = np.ones(len(rows))

    def exponent(self, block: int) -> int:
        return 0 if self._empty[block] else int(self._exponents[block]) + BIAS

    def values(self, block: int, exponent: int) -> bytes:
        """Scale by the largest power of two up to appendix C's factor, (2**31 - n) / (n 2**m), and round: the sum of n
        such numbers fits a lane."""
        if exponent:
            most = (2**31 - self._workers) // self._workers
            self.scales[block] = 2.0 ** (most.bit_length() - 1 - (exponent - BIAS))
        return np.rint(self._rows[block] * self.scales[block]).astype(">i4").tobytes()

    def means(self, divisor: int) -> Floats64:
        """Return the sums divided by this number, shape (B, L)."""
        total: Floats64 = self.sums.view(">i4").astype(np.float64) / (self.scales[:, None] * divisor)
        return total


class Switchml(PacketCollective):
    """The collective, with a pool of job.slots slots in two versions."""

    data_plane = f"{__name__}:SwitchmlPlane"
    port = SwitchmlPlane.port
    words = WORDS
    _pool: Pool | None = None

    def speaker(self, blocks: Blocks) -> Speaker:
        return PoolSpeaker(blocks, self._slots())

    def _slots(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.job.id, self.rank, self.job.slots, self.job.rto_ms / 1e3)
        return self._pool

    def _note(self, task: Task) -> bytes:
        """Return nothing: exponents travel in packets."""
        return b""

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        if task.call.kind not in SUMS or task.call.dtype not in FLOATING or not task.given.size:
            return super()._carry(task)
        task.watch.turn("encode")
        flat = np.ascontiguousarray(task.given, np.float64).reshape(-1)
        rows = np.pad(flat, (0, -flat.size % LANES)).reshape(-1, LANES)
        speaker = FloatSpeaker(rows, self._slots(), self.workers)
        self._converse(speaker, task.watch)
        task.watch.turn("decode")
        means = speaker.means(self.workers if task.call.op == "mean" else 1).reshape(-1)[: flat.size]
        begin = self.rank * task.out.size if task.call.kind == "reduce_scatter" else 0
        task.out[...] = means[begin : begin + task.out.size].reshape(task.out.shape)
        return self._outcome(task)
