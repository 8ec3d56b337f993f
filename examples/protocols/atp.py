"""ATP (Lao et al., NSDI 2021) as a collective: workers, and a parameter server on its own host (switch: atp.p4).

docs/reference/atp.md compares it with the paper.
"""

import contextlib
import signal
import struct
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import numpy.typing as npt

from kofn import (
    ONLY_SWITCH,
    SERVICE,
    Blocks,
    DataPlane,
    JobSection,
    PacketCollective,
    SlotLayout,
    Speaker,
    SwitchEntry,
    SwitchRole,
    TopologyHost,
    addressing,
    connected_socket,
    exact,
    forwarding,
)

HEADER = struct.Struct("!BBHIQ")  # atp_h: job, flags, index, sequence, bitmap
RESEND, ECN, PARAMETER = 1, 2, 4
WORDS = 4
SERVER_PORT = 0x4155
WINDOW = 64
"""The largest congestion window in packets, and the first one."""

AHEAD = 3
"""A block is lost when so many later ones have their parameters."""


class AtpPlane(DataPlane):
    """The program, and its entries for each job. All jobs share the aggregators."""

    program = Path(__file__).with_name("atp.p4")
    port = 0x4154
    counters: ClassVar = {"ingress.packets": ("allocated", "added", "completed", "passed on", "given up", "parameters")}

    def entries(self, layouts: Sequence[SlotLayout], role: SwitchRole = ONLY_SWITCH) -> Iterator[SwitchEntry]:
        yield from forwarding(layouts)
        yield from addressing(layouts)
        for layout in layouts:
            job, match, everyone = layout.job, {"hdr.atp.job": layout.job.id}, (1 << layout.job.workers) - 1
            where = {"group": job.id, "everyone": everyone, "server": _server(layout).port}
            yield exact("ingress.jobs", match, "ingress.set_job", **where)

    def slot_bits(self, job: JobSection) -> int:
        """Return those of an aggregator: values, owner, bitmap and ECN."""
        return 2048 * WORDS + 40 + 64 + 8


def _server(layout: SlotLayout) -> TopologyHost:
    if layout.server is None:
        raise ValueError(f"job {layout.job.id} must have a host for its server, got {len(layout.hosts)} hosts")
    return layout.server


def index_of(job: int, sequence: int, aggregators: int) -> int:
    """Return the aggregator of a block: a hash, so that jobs need no partition."""
    return zlib.crc32(struct.pack("!BI", job, sequence)) % aggregators


class Window:
    """The congestion window in packets: one more for each window of parameters, half after ECN or a loss."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, float(most)
        self._until = 0  # no second halving before this block has its parameters

    def grow(self) -> None:
        self.size = min(self.size + 1 / self.size, self.most)

    def shrink(self, sequence: int, newest: int) -> None:
        """Halve the window, once for all blocks up to the newest one that was sent."""
        if sequence > self._until:
            self.size, self._until = max(self.size / 2, 1.0), newest


class AtpSpeaker(Speaker):
    """A worker's blocks in one call; their sequence numbers begin with `first`."""

    def __init__(self, blocks: Blocks, *, job: JobSection, rank: int, first: int, window: Window) -> None:
        super().__init__(blocks)
        self._job, self._rank, self._first, self._window = job, rank, first, window
        self._rto_s, self._sent = job.rto_ms / 1e3, 0
        self._open: OrderedDict[int, float] = OrderedDict()  # by block: the deadline, oldest packet first
        self._ahead: dict[int, int] = {}  # by block: later ones with parameters

    def begin(self, now_s: float) -> Iterator[bytes]:
        return self._more(now_s)

    def receive(self, packet: bytes, now_s: float) -> Iterator[bytes]:
        _, flags, _, sequence, _ = HEADER.unpack_from(packet)
        block = sequence - self._first
        if block not in self._open:
            return  # parameters that came twice, or of an earlier call
        del self._open[block]
        self.close(block, packet[HEADER.size :])
        self._window.grow()
        if flags & ECN:
            self._window.shrink(sequence, self._first + self._sent)
        for earlier in [other for other in self._open if other < block]:
            self._ahead[earlier] = self._ahead.get(earlier, 0) + 1
            if self._ahead[earlier] == AHEAD:
                yield self._again(earlier, now_s)
        yield from self._more(now_s)

    def expire(self, now_s: float) -> Iterator[bytes]:
        for block in [block for block, deadline_s in self._open.items() if deadline_s <= now_s]:
            yield self._again(block, now_s)

    def _more(self, now_s: float) -> Iterator[bytes]:
        """Yield the packets of further blocks, while they are less than a window beyond the oldest open one."""
        while self._sent < len(self.blocks) and self._sent < min(self._open, default=self._sent) + self._window.size:
            self._sent += 1
            yield self._packet(self._sent - 1, 0, now_s)
        self._set_deadline()

    def _again(self, block: int, now_s: float) -> bytes:
        self.retransmissions += 1
        self._window.shrink(self._first + block, self._first + self._sent)
        return self._packet(block, RESEND, now_s)

    def _packet(self, block: int, flags: int, now_s: float) -> bytes:
        self._open.pop(block, None)
        self._open[block] = now_s + self._rto_s
        self._set_deadline()
        sequence, job = self._first + block, self._job
        index = index_of(job.id, sequence, job.slots)
        return HEADER.pack(job.id, flags, index, sequence, 1 << self._rank) + self.blocks[block].tobytes()

    def _set_deadline(self) -> None:
        self.deadline_s = next(iter(self._open.values()), float("inf"))


class ParameterServer:
    """Completes the sums of one job, without I/O; it keeps the parameters that a worker may still ask for."""

    def __init__(self, job: int, workers: int, kept: int) -> None:
        self._job, self._everyone, self._kept = job, (1 << workers) - 1, kept
        self._sums: dict[int, tuple[int, int, npt.NDArray[np.uint32]]] = {}  # by sequence: bitmap, flags, lanes
        self._done: OrderedDict[int, bytes] = OrderedDict()
        self.refused = 0
        """Packets with workers that a sum has already."""

    def receive(self, packet: bytes) -> bytes | None:
        """Return the parameter packet for all workers, if there is one."""
        _, flags, index, sequence, bitmap = HEADER.unpack_from(packet)
        if sequence in self._done:
            return self._done[sequence] if flags & RESEND else None
        lanes = np.frombuffer(packet, ">u4", offset=HEADER.size).astype(np.uint32)
        present, ecn, total = self._sums.get(sequence, (0, 0, np.zeros_like(lanes)))
        if present & bitmap:
            self.refused += 1  # the workers in it that are missing repeat their own packets
            return None
        present, ecn, total = present | bitmap, ecn | flags & ECN, total + lanes
        self._sums[sequence] = present, ecn, total
        if present != self._everyone:
            return None
        del self._sums[sequence]
        header = HEADER.pack(self._job, PARAMETER | ecn, index, sequence, present)
        self._done[sequence] = header + total.astype(">u4").tobytes()
        while len(self._done) > self._kept:
            self._done.popitem(last=False)
        return self._done[sequence]


class Atp(PacketCollective):
    """The collective. job.slots is the number of aggregators, which all jobs share."""

    data_plane = f"{__name__}:AtpPlane"
    port = AtpPlane.port
    server = __name__
    words = WORDS

    def __init__(self, rank: int, addresses: Sequence[str], **given: Any) -> None:
        self._next, self._window = 1, Window(WINDOW)
        super().__init__(rank, addresses, **given)

    def speaker(self, blocks: Blocks) -> Speaker:
        first, self._next = self._next, self._next + len(blocks)
        return AtpSpeaker(blocks, job=self.job, rank=self.rank, first=first, window=self._window)


@click.command()
@click.option("--address", required=True, help="The server's own address on the data network.")
@click.option("--worker", "workers", multiple=True, required=True, help="A worker's address, once for each.")
@click.option("--job", type=int, required=True, help="job.id.")
@click.option("--k", expose_value=False, help="All workers complete a block.")
@click.option("--slots", expose_value=False, help="The switch's.")
@click.option("--switch-segments", is_flag=True, expose_value=False, help="The answers are not coalesced anyway.")
def serve(address: str, workers: tuple[str, ...], job: int) -> None:
    """Run a job's parameter server until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server, opened = ParameterServer(job, len(workers), 4 * WINDOW), connected_socket(SERVICE, address, SERVER_PORT)
    opened.setblocking(True)
    print(f"serving job {job} at {address}:{SERVER_PORT}", flush=True)
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            answer = server.receive(opened.recv(1 << 16))
            if answer is not None:
                opened.send(answer)


if __name__ == "__main__":
    serve()
