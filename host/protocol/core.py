"""The protocol core of core.c, which says what it does: events in, instructions out.

    protocol = Protocol(job=1, rank=0, layout=layout, slots=64, window=32, rto_s=0.05)
    protocol.begin(1, now)
    for instruction in protocol.contribute_all(ready, now=now): ...
    for instruction in protocol.packets_in(answers, now): ...

Only one thread may call it.
"""

import ctypes
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Integers
from kofn.host.errors import ProtocolError
from kofn.host.native import library
from kofn.host.protocol.block_layout import BlockLayout
from kofn.host.protocol.instructions import (
    AskPeers,
    Complete,
    Deliver,
    EncodeAgain,
    Instruction,
    Packed,
    PackedBlocks,
    Send,
    request_of,
)
from kofn.host.protocol.results import RESULT, BlockId, BlockResults, Result
from kofn.host.protocol.slot_query import SlotQuery
from kofn.host.wire.packet import HEADER_BYTES, PARTS, KofnHeader, Lanes, encode_header, headers_of

STATE = 11
"""The first fields of struct core, 64 bits each."""

_ITERATION, _NEWEST, _GENERATION, _REGROUPING, _K, _COUNT, _OPEN, _WAITING, _INSTRUCTIONS, _URGENT, _GIVEN = range(
    STATE
)

INSTRUCTION = np.dtype(
    [
        ("kind", np.int32),
        ("part", np.int32),
        ("counts", np.int32),
        ("scale", np.int32),
        ("lanes", np.int32),
        ("hint", np.int32),
        ("iteration", np.int64),
        ("block", np.int64),
        ("time_s", np.float64),
        ("launch", np.int64),
        ("size", np.int64),
        ("values", np.uint64),
        ("header", np.uint8, (HEADER_BYTES,)),
    ],
    align=True,
)
"""struct instruction."""

SEND, DELIVER, COMPLETE, ENCODE_AGAIN, ASK_PEERS = range(5)

_PLACES = 5
"""Pointers of struct core_places."""

COUNTED = 8
"""Numbers of struct statistics."""

_WIRE_BYTES = 7
"""The place of one of them."""

_ROOM = 512
"""Instructions that are taken at a time."""

_WAITING_BYTES = 32
"""Of struct waiting."""


@dataclass(slots=True, kw_only=True)
class Statistics:
    """What happened to this worker's blocks, for the metrics; the core counts the first ones."""

    retransmissions: int = 0
    pulls: int = 0
    stale: int = 0
    refused: int = 0
    foreign: int = 0  # packets of another job, or that only workers send
    other_generation: int = 0  # packets from before a regroup
    regroups: int = 0
    wire_bytes: int = 0  # of values that were sent, again and again where need was
    checksum_errors: int = 0
    peer_fetches: int = 0
    resyncs: int = 0  # times that the parameters came from a peer


class Protocol:
    """One worker's blocks of one job, iteration after iteration.

    Blocks have the job's `layout`; `slots` of the job; at most `window` blocks are in flight; results of the last
    `keep` iterations stay available for peers, and who was in them for `keep_members` iterations.  `workers`: of the
    job; once all have given to an iteration, the results of those before are forgotten; 0: they stay.  `lazy`:
    packets_in() keeps results back until there is something else to do.  `probes_link`: take_link_wait_s() has answers.
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
        lazy: bool = False,
        probes_link: bool = False,
    ) -> None:
        check_window(window, slots)
        self.rank, self.layout, self.slots, self._lazy = rank, layout, slots, lazy
        self.library = library()
        shape = np.array(astuple(layout), np.int64)
        opened = self.library.core_open(
            job, rank, shape.ctypes.data, slots, window, rto_s, keep, keep_members, (1 << workers) - 1
        )
        if not opened:
            raise ProtocolError(f"no memory for {layout.total} blocks")
        if probes_link:
            self.library.core_probe_link(opened)
        self._own = Statistics()
        self._kept: list[object] = []  # what the core may send again
        self._attach(opened)

    def _attach(self, address: int) -> None:
        """To a struct core, which is this object's from now on."""
        self.address = ctypes.c_void_p(address)
        weakref.finalize(self, self.library.core_close, self.address)
        self._state = memoryview((ctypes.c_int64 * STATE).from_address(address)).cast("B").cast("q")
        places, blocks = (ctypes.c_uint64 * _PLACES)(), self.layout.total
        self.library.core_read(self.address, places)
        self._blocks = _array(ctypes.c_int32, blocks, places[0])
        self._open = _array(ctypes.c_uint8, blocks, places[1])
        waiting = _array(ctypes.c_int64, blocks * PARTS * _WAITING_BYTES // 8, places[2])
        self._waits = waiting.reshape(blocks, PARTS, -1)[:, 0, 0]
        self._counted = (ctypes.c_int64 * COUNTED).from_address(places[3])
        self.query = SlotQuery(places[4])
        """Who is in a block that does not close, if that was asked in this iteration."""

    # -- events

    def begin(
        self,
        iteration: int,
        now: float,
        blocks: Sequence[int] | Integers | None = None,
        lanes: int = Lanes.BITS_32,
        first: int | None = None,
    ) -> list[Instruction]:
        """Start the next iteration; closes what others have already closed and pulls the rest of it.

        `blocks`: which are sent in it, ascending, the summary block among them if it is (None: all); `lanes`: the code
        of those planned for them, but for the summary block; `first`: how many blocks were sent in all iterations
        before, or any number from which their slots follow (None: all blocks of all).  They must be the same for every
        worker.
        """
        return self._begin("begin", iteration, now, blocks, lanes, first)

    def jump(
        self,
        iteration: int,
        now: float,
        blocks: Sequence[int] | Integers | None = None,
        lanes: int = Lanes.BITS_32,
        first: int | None = None,
    ) -> list[Instruction]:
        """Leave the open blocks to the others and begin a later iteration: the parameters came from a peer."""
        return self._begin("jump", iteration, now, blocks, lanes, first)

    def _begin(
        self,
        begin: str,
        iteration: int,
        now: float,
        blocks: Sequence[int] | Integers | None,
        lanes: int,
        first: int | None,
    ) -> list[Instruction]:
        chosen = np.ascontiguousarray(range(self.layout.total) if blocks is None else blocks, np.int32)
        number = iteration * self.layout.total if first is None else first
        done = self._do(begin, iteration, now, chosen.ctypes.data, len(chosen), number, lanes)
        self._kept.clear()
        return done

    def contribute(
        self, block: int, packed: Packed, *, now: float, part: int = 0, counts: bool = True, uses: int | None = None
    ) -> list[Instruction]:
        """As contribute_all() with one block."""
        return self.contribute_all([(block, packed)], now=now, part=part, counts=counts, uses=uses)

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

    def packet_in(self, header: KofnHeader, values: bytes, now: float) -> list[Instruction]:
        """An answer of the switch."""
        return self.packets_in([(header, values)], now)

    def packets_in(self, packets: Iterable[tuple[KofnHeader, bytes]], now: float) -> list[Instruction]:
        """Answers of the switch that have come together: headers and values."""
        for header, values in packets:
            if self._call("datagram_in", encode_header(header), values, len(values), now):
                self._fail()
        if self._call("packets_done", now):
            self._fail()
        return self.urgent() if self._lazy else self._take()

    def urgent(self) -> list[Instruction]:
        """All that there is to do, if any of it is more than results to take."""
        return self._take() if self._state[_URGENT] else []

    def held_back(self) -> list[Instruction]:
        """What a lazy one has kept back."""
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

    def take_link_wait_s(self, now: float) -> float | None:
        """Return how long a gradient's last packet waits in this worker's link; None where that is known already."""
        wait_s: float = self._call("take_link_wait", now)
        return wait_s if wait_s >= 0 else None

    def leaves(self, sent: Send, at: float) -> None:
        """What was to be sent waits in this host and leaves then: its answer is not waited for before."""
        request = request_of(sent.header.block, sent.header.part)
        self._call("leaves", request, sent.launch, at)

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

    # -- state that callers look at

    @property
    def iteration(self) -> int:
        """The current one; 0 before the first."""
        return self._state[_ITERATION]

    @property
    def blocks(self) -> Integers:
        """Those of the current iteration, ascending."""
        return self._blocks[: self._state[_COUNT]].astype(np.int64)

    @property
    def generation(self) -> int:
        """Of the slots that this worker speaks of."""
        return self._state[_GENERATION]

    @property
    def given(self) -> int:
        """The latest iteration that all workers are known to have given to; 0: none, or `workers` was not said."""
        return self._state[_GIVEN]

    @property
    def given_at(self) -> int:
        """The address of that, an int64."""
        return int(self.address.value or 0) + 8 * _GIVEN

    @property
    def k(self) -> int:
        """In force when the newest iteration was made of which a result is known; 0: not known."""
        return self._state[_K]

    @property
    def regrouping(self) -> bool:
        """Between regroup() and resume()."""
        return bool(self._state[_REGROUPING])

    @property
    def statistics(self) -> Statistics:
        for field, number in zip(fields(Statistics), self._counted, strict=False):
            setattr(self._own, field.name, number)
        return self._own

    @property
    def wire_bytes(self) -> int:
        """Of the statistics, alone."""
        return self._counted[_WIRE_BYTES]

    @property
    def deadline(self) -> float | None:
        """When timer() is due; None while nothing is in flight."""
        deadline: float = self._call("deadline_s")
        return deadline if deadline < np.inf else None

    @property
    def left_behind(self) -> bool:
        """Whether the others have finished the current iteration: results of a later one were seen."""
        return self._state[_NEWEST] > self._state[_ITERATION]

    @property
    def over(self) -> bool:
        """Whether the current iteration ended elsewhere: its blocks are closed, or results of a later one were seen."""
        return not self._state[_OPEN] or self.left_behind

    def is_over(self, iteration: int) -> bool:
        """Whether an iteration that was begun here is over, here or elsewhere."""
        return self.over or self.iteration > iteration

    @property
    def missing(self) -> list[int]:
        """Open blocks of the current iteration, ascending."""
        # a copy: the engine goes on meanwhile, and NumPy counts before it collects
        missing: list[int] = np.flatnonzero(self._open.copy()).tolist() if self._state[_OPEN] else []
        return missing

    @property
    def share(self) -> float:
        """Of the current iteration's blocks those that are closed, 0 to 1."""
        return 1 - self._state[_OPEN] / max(1, self._state[_COUNT])

    @property
    def waiting_count(self) -> int:
        """Contributions that wait for the window."""
        return self._state[_WAITING]

    @property
    def waiting(self) -> list[int]:
        """Blocks whose part 0 was contributed and waits for the window."""
        waiting: list[int] = np.flatnonzero(self._waits.copy()).tolist() if self._state[_WAITING] else []
        return waiting

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
        return self._taken("take") if self._state[_INSTRUCTIONS] else []

    def _taken(self, take: str) -> list[Instruction]:
        """All that there is to take; ProtocolError after an error."""
        found: list[Instruction] = []
        count = _ROOM
        while count == _ROOM:
            table, results = np.empty(_ROOM, INSTRUCTION), np.empty(_ROOM, RESULT)
            count = self._call(take, table.ctypes.data, results.ctypes.data, _ROOM)
            if count < 0:
                self._fail()
            for begin, end in _runs(table[:count]):
                found += self._instructions(table[begin:end], results[begin:end])
        return found

    def _instructions(self, run: npt.NDArray[Any], results: npt.NDArray[Any]) -> Iterator[Instruction]:
        """Of instructions of one kind; `results`: of DELIVERs."""
        kind = run[0]["kind"]
        if kind == DELIVER:
            of = BlockResults(int(run[0]["iteration"]), run["block"], results, self)
            yield Deliver(of, run["hint"].astype(np.int64), run["time_s"])
        elif kind == SEND:
            yield from map(_send, headers_of(run["header"].tobytes()), run["values"], run["size"], run["launch"])
        elif kind == ENCODE_AGAIN:
            for row in run[["block", "part", "counts", "scale", "lanes"]].tolist():
                block, part, counts, scale, lanes = row
                yield EncodeAgain(block=block, part=part, counts=bool(counts), scale=scale, lanes=lanes)
        elif kind == ASK_PEERS:
            yield from (AskPeers(id=BlockId(*id)) for id in run[["iteration", "block"]].tolist())
        else:
            yield Complete(iteration=int(run[0]["iteration"]))


def check_window(window: int, slots: int) -> None:
    """ProtocolError unless blocks that follow each other in a slot are two windows apart, or more."""
    if window < 1 or slots % (2 * window):
        raise ProtocolError(f"window is {window}: what divides {slots // 2} (slots / 2) is allowed")


def _array(kind: Any, size: int, address: int) -> npt.NDArray[Any]:
    return np.ctypeslib.as_array((kind * size).from_address(address))


def _runs(table: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Where neighbours of a kind, and of an iteration, begin and end."""
    kinds, iterations = table["kind"], table["iteration"]
    others = np.flatnonzero((kinds[1:] != kinds[:-1]) | (iterations[1:] != iterations[:-1]))
    return [*pairwise([0, *(others + 1).tolist(), len(table)])] if len(table) else []


def _send(header: KofnHeader, values: int, size: int, launch: int) -> Send:
    return Send(header, ctypes.string_at(int(values), int(size)), int(launch))
