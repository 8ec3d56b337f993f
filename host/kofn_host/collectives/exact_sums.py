"""Exact collectives through the switch: sums of all workers' lanes (exact_lanes.py), or one worker's bytes
(owned_bytes.py).

In a reduce-scatter each worker receives its row of the sum.  An all-gather and a broadcast use owned blocks.  A small
all-gather or broadcast is a sum for all workers, with zeros from the workers that give no bytes.  For the switch, exact
collectives are a separate job with its own slots; this job's k is the number of workers, or 1 for owned blocks.  The
job's iterations are the workers' calls in the agreed order; a long call has several iterations.  Blocks are numbered
consecutively over all calls (docs/explanation/protocol.md).
"""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from kofn_common.config.job import JobSection
from kofn_common.running_clock import RunningClock
from kofn_common.wire.packet import HEADER_BYTES, WORD_BYTES, WORD_LANES
from kofn_common.wire.sizes import WEIGHT_MAX
from kofn_host.arrays import Integers
from kofn_host.collectives.block_rows import may_be_apart
from kofn_host.collectives.call import Array
from kofn_host.collectives.communicator import Task
from kofn_host.collectives.exact_lanes import LaneSum, Outgoing
from kofn_host.collectives.lane_communicator import SUMS, LaneCommunicator
from kofn_host.collectives.owned_bytes import OwnedBytes
from kofn_host.collectives.peers import Stalled
from kofn_host.collectives.work import WorkOutcome
from kofn_host.engine.engine import EnginePort
from kofn_host.errors import CollectiveError
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import PACKED, AskPeers, Complete, EncodeAgain, PackedBlocks
from kofn_host.protocol.results import BlockResults

ITERATION_BYTES, ITERATION_BLOCKS = 4 << 20, 4096
"""Limits of an iteration: while an iteration is summed, the next one is encoded and the previous one is decoded."""


def exact_protocol(job: JobSection, rank: int, words: int) -> EnginePort:
    """Return the protocol for ExactSums of a job with exact slots, in blocks of `words` words."""
    blocks = min(ITERATION_BLOCKS, ITERATION_BYTES // (words * WORD_BYTES))
    return EnginePort(
        job=job.exact_id,
        rank=rank,
        layout=BlockLayout(blocks=blocks, words=words, widest=32),
        slots=job.exact_slots,
        window=min(job.window, job.exact_slots // 2),
        rto_s=job.rto_ms / 1000,
        keep=1,
        keep_members=1,
        workers=job.workers,
        racks=job.racks,
        forgets=False,  # an iteration is decoded while the next one is summed
    )


class ExactSums(LaneCommunicator):
    """A Communicator whose `protocol` an engine drives; the slots have seen no iteration after `iteration`.

    `failing` is called with the reason when all calls fail.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        protocol: EnginePort,
        *,
        job: int,
        iteration: int,
        timeout_s: float,
        meet_s: float,
        failing: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._failing = failing
        self._protocol, self._iteration = protocol, iteration
        self._sent_blocks = 0
        self._owners: Integers | None = None
        """The owners of the iteration's blocks; None: the blocks are sums."""
        self._interrupted = False
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._readable = select.poll()
        for readable in (protocol, self._woken):
            self._readable.register(readable, select.POLLIN)
        super().__init__(rank, addresses, job=job, timeout_s=timeout_s, meet_s=meet_s)

    # -- how workers find each other

    def _prepare(self, host: str) -> str:
        layout, protocol = self._protocol.layout, self._protocol
        return (
            f"blocks of {layout.words} words in {protocol.slots} slots of generation {protocol.generation},"
            f" from iteration {self._iteration + 1} on"
        )

    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        """Check that all workers use the same slots.

        Sums have a scale and a weight derived from this meeting's secret, so that old sums in the slots are recognised.
        """
        self._scale, self._weight = int(secret[:4], 16) - (1 << 15), 1 + int(secret[4:12], 16) % WEIGHT_MAX
        for rank, card in enumerate(cards):
            if card != cards[0]:
                raise CollectiveError(f"worker {rank} sums in {card}, worker 0 in {cards[0]}: all must be the same")

    # -- calls

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        """Carry out a call; while an iteration is summed, encode the next iteration and decode the previous one."""
        watch, before = task.watch, self._protocol.wire_bytes
        watch.turn("encode")
        moved, arrived = self._moved(task), None
        parts = self._parts(moved)
        encoded = map(moved.encode, parts)
        ready = next(encoded, None)
        for part in parts:
            watch.turn("send")
            assert ready is not None
            self._contribute(moved, part, ready)
            watch.turn("decode")
            if arrived is not None:
                moved.decode(*arrived)
            watch.turn("encode")
            ready = next(encoded, None)
            watch.turn("wait")
            arrived = part, self._results().addresses
        watch.turn("decode")
        if arrived is not None:
            moved.decode(*arrived)
        sent, packet_bytes = self._protocol.wire_bytes - before, HEADER_BYTES + self._block_bytes
        return WorkOutcome(
            value=task.out,
            count=self.workers,
            times=watch.times(),
            sent_bytes=sent // self._block_bytes * packet_bytes,
            received_bytes=moved.whole * packet_bytes + HEADER_BYTES * (moved.blocks - moved.whole),
        )

    def _moved(self, task: Task) -> LaneSum | OwnedBytes:
        """Return the data that a call moves."""
        if task.call.kind in SUMS:
            return self._lane_sum(task)
        owned, blocks = self._owned(task), -(-task.out.nbytes // self._block_bytes)
        return owned if owned is not None and owned.blocks <= 2 * blocks else self._among_zeros(task)

    def _row_blocks(self, task: Task, per_block: int) -> int:
        """Return the number of blocks that each worker alone receives; 0: all workers receive all blocks.

        Rows of a reduce-scatter are padded to whole blocks, unless the padding adds more than an eighth.
        """
        row_blocks, blocks = -(-task.out.size // per_block), -(-task.given.size // per_block)
        apart = task.call.kind == "reduce_scatter" and may_be_apart(self.workers * row_blocks, blocks)
        return row_blocks if apart else 0

    def _owned(self, task: Task) -> OwnedBytes | None:
        """Return an all-gather or broadcast in owned blocks; None if there are too few slots for all workers' turns."""
        out, most_span = task.out.reshape(-1), self._protocol.slots // 4
        if self.workers > most_span or not out.size:
            return None
        given = np.ascontiguousarray(task.given).reshape(-1)
        place = self.rank, self.workers, self._block_bytes
        if task.call.root is None:
            return OwnedBytes.gathered(*place, given, out)
        return OwnedBytes.broadcast(*place, task.call.root, given, out, most_span)

    # -- iterations

    @property
    def _block_bytes(self) -> int:
        return self._protocol.layout.words * WORD_BYTES

    @property
    def _lanes(self) -> int:
        """Lanes of a block."""
        return self._protocol.layout.words * WORD_LANES

    def _parts(self, moved: LaneSum | OwnedBytes) -> list[range]:
        """Return the blocks of each iteration."""
        blocks, most = range(moved.blocks), self._protocol.layout.blocks
        most -= most % moved.span
        return [blocks[at : at + most] for at in range(0, len(blocks), most)]

    def _contribute(self, moved: LaneSum | OwnedBytes, part: range, ready: Outgoing) -> None:
        """Begin the next iteration with these blocks, and contribute `ready`."""
        now, table = time.monotonic(), np.zeros(len(ready.blocks), PACKED)
        table["block"], table["values"] = ready.blocks, ready.addresses
        table["size"], table["scale"], table["weight"] = self._block_bytes, self._scale, self._weight
        self._iteration, self._owners = self._iteration + 1, moved.owners(part)
        self._protocol.begin(self._iteration, now, range(len(part)), first=self._sent_blocks)
        self._sent_blocks += len(part)
        if self._owners is not None:
            self._protocol.owned(self._owners, moved.span, now)
        if (recipients := moved.recipients(part)) is not None:
            self._protocol.received(recipients)
        self._protocol.contribute_all(PackedBlocks(table, ready.values), now=now)

    def _results(self) -> BlockResults:
        """Wait for the iteration's end; return its results, checked."""
        self._wait()
        results = self._protocol.results_of(self._iteration)
        givers = self.workers if self._owners is None else 1
        expected = {"count": givers, "scale": self._scale, "weight": givers * self._weight}
        wrong = {name for name, number in expected.items() if (results.numbers(name) != number).any()}
        if "count" in wrong and self._owners is None:
            raise CollectiveError(f"the switch has summed fewer than the {self.workers} workers: its k is wrong")
        if wrong or (self._owners is not None and (results.givers != self._protocol.places[self._owners]).any()):
            self._refuse_used()
        return results

    def _wait(self) -> None:
        """Wait until the iteration is complete; Stalled if no block closes within the time-out."""
        clock = RunningClock(self._timeout_s / 2)
        share, moved_s = self._protocol.share, clock()
        while not self._is_complete():
            self._readable.poll(250 * self._timeout_s)
            now = clock()
            if share != self._protocol.share:
                share, moved_s = self._protocol.share, now
            elif now - moved_s >= self._timeout_s:
                raise Stalled(f"no block was summed for {self._timeout_s:g} s; {self._who_is_missing()}")
            elif now - moved_s >= self._timeout_s / 2:
                self._protocol.ask_slot()

    def _who_is_missing(self) -> str:
        missing = self._protocol.missing
        if self._owners is None or not missing:
            return self._protocol.query.describe(self.workers)
        return f"worker {self._owners[missing[0]]} has not sent its block {missing[0]}, or no switch answers"

    def _is_complete(self) -> bool:
        """Handle the protocol's news; return whether the iteration is complete."""
        if self._interrupted:
            raise CollectiveError(f"worker {self.rank} was interrupted")
        news = self._protocol.news()
        if any(isinstance(instruction, AskPeers | EncodeAgain) for instruction in news):
            self._refuse_used()
        return any(isinstance(instruction, Complete) for instruction in news)

    def _refuse_used(self) -> NoReturn:
        """Raise CollectiveError: the slots hold this block, or a later one, of an earlier communicator."""
        raise CollectiveError(
            f"iteration {self._iteration} is not new to the slots of generation {self._protocol.generation}:"
            " first_iteration must be above all iterations that were summed in them"
        )

    # -- the end

    def _fail(self, reason: str) -> None:
        super()._fail(reason)
        self._failing(self._failed)

    def _interrupt(self) -> None:
        self._interrupted = True
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    def _release(self) -> None:
        self._wake.close()
        self._woken.close()
