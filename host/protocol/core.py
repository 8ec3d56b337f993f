"""The protocol core of core.c, which says what it does: events in, instructions out.

    protocol = Protocol(job=1, rank=0, layout=layout, slots=64, window=32, rto_s=0.05)
    protocol.begin(1, now)
    for instruction in protocol.contribute_all(ready, now=now): ...
    for instruction in protocol.packets_in(answers, now): ...

Only one thread may call it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, NoReturn

import numpy as np

from kofn.host.arrays import Integers
from kofn.host.errors import ProtocolError
from kofn.host.native import library
from kofn.host.protocol.block_layout import BlockLayout
from kofn.host.protocol.core_state import INSTRUCTIONS, CoreState, Statistics
from kofn.host.protocol.instruction_table import INSTRUCTION, read_instructions
from kofn.host.protocol.instructions import (
    Instruction,
    Packed,
    PackedBlocks,
    request_of,
)
from kofn.host.protocol.results import RESULT, BlockResults, Result
from kofn.host.wire.packet import PARTS, KofnHeader, Lanes, encode_header

_ROOM = 512
"""Instructions that are taken at a time."""


class Protocol(CoreState):
    """One worker's blocks of one job, iteration after iteration.

    Blocks have the job's `layout`; `slots` of the job; at most `window` blocks are in flight; results of the last
    `keep` iterations stay available for peers, and who was in them for `keep_members` iterations.  `workers`: of the
    job; once all have given to an iteration, the results of those before are forgotten; 0: they stay.
    CompilerMissing where there is no C compiler.
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
    ) -> None:
        check_window(window, slots)
        self.rank, self.layout, self.slots = rank, layout, slots
        self.library = library()
        shape = np.array(astuple(layout), np.int64)
        opened = self.library.core_open(
            job, rank, shape.ctypes.data, slots, window, rto_s, keep, keep_members, (1 << workers) - 1
        )
        if not opened:
            raise ProtocolError(f"no memory for {layout.total} blocks")
        self._own = Statistics()
        self._kept: list[object] = []  # what the core may send again
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
        """Start the next iteration; closes what others have already closed and pulls the rest of it.

        `blocks`: which are sent in it, ascending, the summary block among them if it is (None: all); `lanes`: the code
        of those planned for them, but for the summary block; `first`: how many blocks were sent in all iterations
        before, or any number from which their slots follow (None: all blocks of all).  They must be the same for every
        worker.  `jump`: open blocks are left to the others, as the parameters came from a peer.
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
        """This part of the worker's contribution to some blocks is ready; nothing happens where they have closed.

        `counts`: whether it is one of the k.  `uses`: the lanes that the worker sends in by now, where a slot wanted
        others for a block (None: its lanes); the others are told when they are narrower than planned.
        """
        packed = ready if isinstance(ready, PackedBlocks) else PackedBlocks.of(ready)
        self._kept.append(packed)
        of = packed.table.ctypes.data, len(packed.table)
        return self._do("contribute", *of, now, part, counts, -1 if uses is None else uses)

    def packets_in(self, packets: Iterable[tuple[KofnHeader, bytes]], now: float) -> list[Instruction]:
        """Answers of the switch that have come together: headers and values."""
        for header, values in packets:
            if self._call("datagram_in", encode_header(header), values, len(values), now):
                self._fail()
        if self._call("packets_done", now):
            self._fail()
        return self._take()

    def result_in(self, result: Result, now: float) -> list[Instruction]:
        """A result from a peer; copies of it are equal, or ProtocolError says that they are not.

        One of which only the members are known says that its iteration is over.
        """
        row = BlockResults.of([result])
        iteration, block = result.id
        return self._do("result_in", iteration, block, row.table.ctypes.data, now)

    def timer(self, now: float) -> list[Instruction]:
        """Send again what has waited too long."""
        return self._do("timer", now)

    def ask_slot(self) -> list[Instruction]:
        """Ask the switch who is in the first open block; `query` has what it answers.  Nothing while regrouping."""
        return self._do("ask_slot")

    def probe_link(self) -> None:
        """From now on take_link_wait_s() has answers."""
        self._call("probe_link")

    def take_link_wait_s(self, now: float) -> float | None:
        """Return how long a gradient's last packet waits in this worker's link; None where that is known already."""
        wait_s: float = self._call("take_link_wait", now)
        return wait_s if wait_s >= 0 else None

    def withdraw(self, blocks: Iterable[int]) -> list[int]:
        """Take back what waits of part 0 of these blocks and was never sent, to encode it anew; which these are."""
        requests = np.array([request_of(block, 0) for block in blocks], np.int64)
        self._call("withdraw", requests.ctypes.data, len(requests))
        return [int(request) // PARTS for request in requests if request >= 0]

    def enter(self, generation: int) -> None:
        """Speak of these slots, where none newer are known: before the first begin()."""
        self._call("enter", generation)

    def others_reached(self, iteration: int) -> None:
        """This iteration has begun somewhere, so all before it are complete: they can be pulled."""
        self._call("others_reached", iteration)

    def in_pieces(self, level: Integers | Sequence[int] | None = None) -> None:
        """In this iteration gradients come in pieces, all workers': a silence may be their computing.

        `level`, (blocks,): those of one level leave in the same order everywhere; None: all do.
        """
        levels = None if level is None else np.ascontiguousarray(level, np.int64)  # the same array, if it is one
        self._kept.append(levels)
        self._call("in_pieces", None if levels is None else levels.ctypes.data)

    def owned(self, owner: Integers | Sequence[int], span: int, now: float) -> list[Instruction]:
        """The blocks of the iteration that has just begun are owned: each comes to all from one worker alone.

        `owner`, (blocks,): whose each is; of `span` blocks that follow each other every worker owns one or more.
        """
        owners = np.ascontiguousarray(owner, np.int64)
        self._kept.append(owners)
        return self._do("owned", owners.ctypes.data, span, now)

    def received(self, recipient: Integers | Sequence[int]) -> None:
        """In the iteration that has just begun each block's sum goes to one worker alone, `recipient`, (blocks,).

        The others' results say who is in it, and have no values.
        """
        recipients = np.ascontiguousarray(recipient, np.int64)
        self._kept.append(recipients)
        self._call("received", recipients.ctypes.data)

    def regroup(self, generation: int) -> None:
        """The switch has lost the slots: be silent until resume(), take nothing of an earlier generation any more."""
        self._call("regroup", generation)

    def resume(self, now: float) -> list[Instruction]:
        """Everyone has regrouped, and the results that peers hold are in: send what is open."""
        return self._do("resume", now)

    def results(self, first: int, last: int) -> Iterator[Result]:
        """Everything known of the results of iterations first..last, in order: what a peer may ask for."""
        while 0 <= (first := self._call("next_results", first)) <= last:
            yield from self.results_of(first)
            first += 1

    def results_of(self, iteration: int) -> BlockResults:
        """Those of an iteration that are known, by block, ascending."""
        blocks, table = np.empty(self.layout.total, np.uint32), np.empty(self.layout.total, RESULT)
        count = self._call("results", iteration, blocks.ctypes.data, table.ctypes.data)
        return BlockResults(iteration, blocks[:count].astype(np.int64), table[:count], self)

    # -- inside

    def _call(self, name: str, *arguments: Any) -> Any:
        """The core's function of this name."""
        return getattr(self.library, f"core_{name}")(self.address, *arguments)

    def _do(self, name: str, *arguments: Any) -> list[Instruction]:
        """What is to be done after a call that may fail."""
        if self._call(name, *arguments):
            self._fail()
        return self._take()

    @property
    def _said(self) -> str:
        """What was wrong with the latest call that failed."""
        said: bytes = self.library.core_error(self.address)
        return said.decode()

    def _fail(self) -> NoReturn:
        self.library.core_done(self.address)
        raise ProtocolError(self._said)

    def _take(self) -> list[Instruction]:
        return self._taken("take") if self._state[INSTRUCTIONS] else []

    def _taken(self, take: str) -> list[Instruction]:
        """All that there is to take; ProtocolError after an error."""
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
    """ProtocolError unless blocks that follow each other in a slot are two windows apart, or more."""
    if window < 1 or slots % (2 * window):
        raise ProtocolError(f"window must divide {slots // 2} (slots / 2), got {window}")
