"""The protocol core of core.c through ctypes; core.h explains it: events in, instructions out.

    protocol = Protocol(job=1, rank=0, layout=layout, slots=64, window=32, rto_s=0.05)
    protocol.begin(1, now)
    for instruction in protocol.contribute_all(ready, now=now): ...
    for instruction in protocol.packets_in(answers, now): ...

Only one thread may use a Protocol.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import groupby
from typing import Any, NoReturn

import numpy as np

from kofn_common.wire.packet import KofnHeader, Lanes, encode_header, places_of
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX
from kofn_host.arrays import Integers
from kofn_host.errors import ProtocolError
from kofn_host.native import library
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.core_state import CoreState, Statistics
from kofn_host.protocol.instruction_table import INSTRUCTION, read_instructions
from kofn_host.protocol.instructions import (
    Instruction,
    Packed,
    PackedBlocks,
    request_of,
)
from kofn_host.protocol.link_probe import LinkProbe
from kofn_host.protocol.results import RESULT, BlockResults, Result

_ROOM = 512
"""The most instructions that one call takes."""


class Protocol(CoreState):
    """One worker's blocks of one job, iteration after iteration.

    The job has `slots`, and its blocks have `layout`; at most `window` blocks are in flight.  Results of the last
    `keep` iterations stay available for peers, their members for `keep_members` iterations.  In a tree, each of
    the `racks` has equally many of the `workers`; `workers` 0: one switch with at most RACK_WORKERS_MAX workers.
    `forgets`: once all workers have contributed to an iteration, the results of earlier iterations are forgotten.
    CompilerMissing without a C compiler.
    """

    def __init__(
        self,
        *,
        job: int,
        rank: int,
        layout: BlockLayout,
        slots: int,
        window: int,
        rto_s: float,
        keep: int = 64,
        keep_members: int = 100_000,
        workers: int = 0,
        racks: int = 1,
        forgets: bool = True,
    ) -> None:
        check_window(window, slots)
        self.rank, self.layout, self.slots = rank, layout, slots
        self.places: Integers = np.array(places_of(workers or RACK_WORKERS_MAX, racks))
        self.place = int(self.places[rank])
        self.library = library()
        shape = np.array(astuple(layout), np.int64)
        opened = self.library.core_open(
            job,
            rank,
            shape.ctypes.data,
            slots,
            window,
            rto_s,
            keep,
            keep_members,
            workers,
            racks,
            forgets and workers > 0,
        )
        if not opened:
            raise ProtocolError(f"no memory for {layout.total} blocks")
        self.probe = LinkProbe(self._call)
        self._own = Statistics()
        self._kept: list[object] = []  # arrays that the core reads, such as values to retransmit
        self._attach(opened)

    # -- events

    def begin(
        self,
        iteration: int,
        now: float,
        blocks: Sequence[int] | Integers | None = None,
        lanes: int = Lanes.BITS_32,
        first: int | None = None,
        *,
        jump: bool = False,
    ) -> list[Instruction]:
        """Start the next iteration: close blocks with known results; PULL the other blocks if other workers are ahead.

        `blocks`: the blocks that the iteration sends, ascending, with the summary block if it is sent (None: all
        blocks); `lanes`: the code of the lanes planned for them, except the summary block; `first`: the
        number of the iteration's first block, from which the slots of its blocks follow; usually the number of blocks
        sent in all earlier iterations (None: `iteration` times the number of all blocks).  All workers must pass the
        same arguments.  `jump`: abandon open blocks, since the parameters came from a peer.
        """
        chosen = np.ascontiguousarray(range(self.layout.total) if blocks is None else blocks, np.int32)
        number = iteration * self.layout.total if first is None else first
        name = "jump" if jump else "begin"
        done = self._do(name, iteration, now, chosen.ctypes.data, len(chosen), number, lanes)
        self._kept.clear()
        return done

    def contribute_all(
        self,
        ready: PackedBlocks | Iterable[tuple[int, Packed]],
        *,
        now: float,
        part: int = 0,
        counts: bool = True,
        uses: int | None = None,
    ) -> list[Instruction]:
        """Contribute a part to some blocks; closed blocks are skipped.

        `counts`: whether the part counts among the k.  `uses`: the worker's current lanes, which may differ from the
        lanes that a slot wants (None: the lanes of each block).  The packets announce current lanes that are narrower
        than planned.
        """
        packed = ready if isinstance(ready, PackedBlocks) else PackedBlocks.of(ready)
        self._kept.append(packed)
        table = packed.table.ctypes.data, len(packed.table)
        return self._do("contribute", *table, now, part, counts, -1 if uses is None else uses)

    def packets_in(self, packets: Iterable[tuple[KofnHeader, bytes]], now: float) -> list[Instruction]:
        """Handle a batch of the switch's answers: headers and values."""
        for header, values in packets:
            if self._call("datagram_in", encode_header(header), values, len(values), now):
                self._fail()
        if self._call("packets_done", now):
            self._fail()
        return self._take()

    def results_in(self, results: Iterable[Result], now: float) -> list[Instruction]:
        """Take results from a peer; ProtocolError if a known result of a block differs.

        A result that has members but no values says only that its iteration is over.
        """
        done: list[Instruction] = []
        for iteration, some in groupby(results, lambda result: result.id.iteration):
            rows = BlockResults.of(list(some))
            blocks, table = rows.blocks.ctypes.data, rows.table.ctypes.data
            done += self._do("results_in", iteration, blocks, table, len(rows), now)
        return done

    def timer(self, now: float) -> list[Instruction]:
        """Retransmit overdue requests."""
        return self._do("timer", now)

    def ask_slot(self) -> list[Instruction]:
        """Ask the switch for the members of the first open block; the attribute `query` will have the answer.  Do
        nothing while regrouping, or if no block is open."""
        return self._do("ask_slot")

    def follow(self, follows: bool, now: float) -> list[Instruction]:
        """Take results from peers from now on, and send no PULL; or take results from the switch again."""
        return self._do("follow", follows, now)

    def withdraw(self, blocks: Iterable[int]) -> list[int]:
        """Withdraw part 0 of the given blocks that wait and were never sent; return these blocks, to be re-encoded."""
        requests = np.array([request_of(block, 0) for block in blocks], np.int64)
        self._call("withdraw", requests.ctypes.data, len(requests))
        return [int(request) // PARTS for request in requests if request >= 0]

    def enter(self, generation: int) -> None:
        """Use this generation of slots unless a newer one is known; call it before the first begin()."""
        self._call("enter", generation)

    def others_reached(self, iteration: int) -> None:
        """Note that another worker has begun this iteration: all earlier iterations are complete and can be pulled."""
        self._call("others_reached", iteration)

    def in_pieces(self, level: Integers | Sequence[int] | None = None) -> None:
        """Note that all gradients of this iteration come in pieces: during a silence the workers may be computing.

        `level`, (blocks,): blocks of one level leave in the same order everywhere; None: all blocks do.
        """
        levels = None if level is None else np.ascontiguousarray(level, np.int64)  # no copy of an int64 array
        self._kept.append(levels)
        self._call("in_pieces", None if levels is None else levels.ctypes.data)

    def owned(self, owner: Integers | Sequence[int], span: int, now: float) -> list[Instruction]:
        """Declare the blocks of the iteration that has just begun as owned: one worker sends each block to all.

        `owner`, (blocks,): each block's rank; among any `span` consecutive blocks every worker owns at least one.
        """
        owners = np.ascontiguousarray(owner, np.int64)
        self._kept.append(owners)
        return self._do("owned", owners.ctypes.data, span, now)

    def received(self, recipient: Integers | Sequence[int]) -> None:
        """Send each block's sum to one worker only, in the iteration that has just begun.

        `recipient`, (blocks,): the rank of that worker; EVERYONE: all workers.  The other workers' results have the
        members and no values.
        """
        recipients = np.ascontiguousarray(recipient, np.int64)
        self._kept.append(recipients)
        self._call("received", recipients.ctypes.data)

    def regroup(self, generation: int) -> None:
        """Send nothing until resume(), and drop answers of earlier generations: the switch has lost the slots."""
        self._call("regroup", generation)

    def resume(self, now: float) -> list[Instruction]:
        """Send the open blocks: all workers have regrouped, and peers' results are in."""
        return self._do("resume", now)

    def results(self, first: int, last: int) -> Iterator[Result]:
        """Yield all known results of iterations first..last, in order, for peers."""
        while 0 <= (first := self.next_results(first)) <= last:
            yield from self.results_of(first)
            first += 1

    def next_results(self, iteration: int) -> int:
        """Return the first iteration from this one on with a known result; -1 without one."""
        found: int = self._call("next_results", iteration)
        return found

    def results_of(self, iteration: int) -> BlockResults:
        """Return an iteration's known results by block, ascending."""
        blocks, table = np.empty(self.layout.total, np.uint32), np.empty(self.layout.total, RESULT)
        count = self._call("results", iteration, blocks.ctypes.data, table.ctypes.data)
        return BlockResults(iteration, blocks[:count].astype(np.int64), table[:count], self)

    # -- inside

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the core's function of this name."""
        return getattr(self.library, f"core_{name}")(self.address, *arguments)

    def _do(self, name: str, *arguments: Any) -> list[Instruction]:
        """Call a function that may fail; return the new instructions."""
        if self._call(name, *arguments):
            self._fail()
        return self._take()

    @property
    def _said(self) -> str:
        """The message of the latest failed call."""
        said: bytes = self.library.core_error(self.address)
        return said.decode()

    def _fail(self) -> NoReturn:
        self.library.core_done(self.address)
        raise ProtocolError(self._said)

    def _take(self) -> list[Instruction]:
        return self._taken("take") if self._state.instructions_count else []

    def _taken(self, take: str) -> list[Instruction]:
        """Take all new instructions; ProtocolError after an error."""
        found: list[Instruction] = []
        count = _ROOM
        while count == _ROOM:
            table, results = np.empty(_ROOM, INSTRUCTION), np.empty(_ROOM, RESULT)
            count = self._call(take, table.ctypes.data, results.ctypes.data, _ROOM)
            if count < 0:
                self._fail()
            found += read_instructions(table[:count], results, self)
        return found


def check_window(window: int, slots: int) -> None:
    """Raise ProtocolError unless consecutive blocks of a slot are at least two windows apart."""
    if window < 1 or slots % (2 * window):
        raise ProtocolError(f"window must divide {slots // 2} (slots / 2), got {window}")
