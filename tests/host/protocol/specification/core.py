"""The worker's side of the protocol, without I/O.

Events go in (an iteration begins, a block is ready, a packet arrives, time passes, a peer answers); instructions come
out (send a packet, deliver a result, encode again, ask the peers, the iteration is complete).  There are no sockets,
clocks or threads: the caller passes the time as `now`, in seconds.  The tests compare the native core with this class.

    begin(i) --> block open --contribute--> waiting --window--> in flight --RESULT / LATE--> closed
                     |                                              | timer: retransmit
                     +---------------- RESULT / LATE ---------------+ FORMAT_MISMATCH: encode again; STALE: ask peers

A worker contributes up to PARTS parts to a block.  A part counts among the k, or it does not (a merged late gradient).
A block closes by its result, whoever its members are.  Results of later iterations that arrive early are kept until
their iteration begins; then the blocks that others have finished close at once.  All workers begin an iteration with
the same blocks.

The first contribution decides a slot's scale and lanes, as long as the slot has the block.  So a FORMAT_MISMATCH, which
reports them, stays true however late it arrives and whichever attempt it answers.  A request that matches the slot's
format stays as it is; any other one is encoded again.

When the switch has lost its slots, a new generation of slots begins.  After regroup() nothing is sent, and answers of
an earlier generation are dropped.  resume() follows when every worker has regrouped and has fetched the others'
results; it retransmits everything that is still open.  Without this agreement, a block could be summed again for some
workers after another one has its first result.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from kofn_common.wire.packet import (
    EVERYONE,
    MEMBERS_BITS,
    MEMBERS_BYTES,
    WORD_BYTES,
    Flag,
    Kind,
    KofnHeader,
    Lanes,
    bit_of,
    places_of,
)
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX
from kofn_host.errors import ProtocolError
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.core import check_window
from kofn_host.protocol.core_state import Statistics
from kofn_host.protocol.instructions import (
    AskPeers,
    Complete,
    Deliver,
    EncodeAgain,
    Instruction,
    Packed,
    Send,
    request_of,
)
from kofn_host.protocol.results import BlockId, BlockResults, Result
from tests.host.protocol.specification.history import History, check_same
from tests.host.protocol.specification.in_flight import InFlight, InFlightRequest
from tests.host.protocol.specification.iteration_blocks import IterationBlocks, check_words, hint, iteration_blocks
from tests.host.protocol.specification.slot_query import SlotQuery

_RESULT = int(Kind.RESULT)
_RESULTS = frozenset({_RESULT, int(Kind.LATE)})  # plain numbers: members of an enumeration are slow to look up

EXPECTED = 1
"""The number of attempts of an expected request, which was not sent."""

PULLS_BEFORE_PEERS = 3
"""The number of unanswered requests for a closed block after which its slot counts as lost."""


class _Waiting(NamedTuple):
    """A contribution that waits for the window."""

    values: bytes
    scale: int
    lanes: int
    weight: int
    flags: int
    counts: bool


class Protocol:
    """One worker's blocks of one job, iteration after iteration.

    Blocks have the job's `layout`; the job has `slots` slots (a power of two). At most `window` of an iteration's
    blocks are in flight, counted from the first open one. Results of the last `keep` iterations stay for peers, and
    their members for `keep_members` iterations. `workers`: once all of them have contributed to an iteration, the
    results of the earlier ones are forgotten; 0: never early.
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
    ) -> None:
        check_window(window, slots)
        self.rank = rank
        self._places = places_of(workers or RACK_WORKERS_MAX, racks)
        self._racks = racks
        self.statistics = Statistics()
        self._template = KofnHeader(job=job, worker=self._places[rank] % MEMBERS_BITS)
        self._slots = slots
        self._window = window
        self._history = History(keep=keep, keep_members=keep_members)
        self._everyone = sum(bit_of(place, 0) for place in self._places) if workers else 0
        self._in_flight = InFlight(rto_s)
        self._waiting: dict[int, _Waiting] = {}  # by request
        self._launched: set[int] = set()  # requests that were sent in this iteration
        self._blocks = IterationBlocks(layout=layout, total=layout.total)
        self._owner: Sequence[int] | None = None  # by block: the rank of its owner; None: the blocks are sums
        self._recipient: Sequence[int] | None = None  # by block: the rank that gets its sum; None: all get it
        self._reach = window
        self._reached = 0  # owned blocks that have left, are expected, or may leave
        self._follows = False  # whether results come from peers
        self._newest = 0  # the latest iteration with a known result
        self.given = 0
        """The latest iteration to which all workers are known to have contributed."""
        self.k = 0
        """The k in force in the newest iteration with a result; 0: not known."""
        self.regrouping = False
        """Between regroup() and resume()."""
        self.query = SlotQuery()
        """The members of a block that does not close, if they were asked for in this iteration."""

    # -- events

    def begin(
        self,
        iteration: int,
        now: float,
        blocks: Sequence[int] | None = None,
        lanes: int = Lanes.BITS_32,
        first: int | None = None,
        *,
        jump: bool = False,
    ) -> list[Instruction]:
        """Start the next iteration: close the blocks that others have closed, and PULL the rest if the others are
        ahead.

        `blocks`: the sent blocks, ascending, with the summary block if it is sent (None: all); `lanes`: the code of the
        lanes planned for all but the summary block. Both must be the same at every worker.
        """
        if jump:
            return self.jump(iteration, now, blocks, lanes, first)
        if self._blocks.open:
            raise ProtocolError(f"iteration {iteration} begins, but {self.iteration} has open blocks: {self.missing}")
        if iteration <= self.iteration:
            raise ProtocolError(f"an iteration must come after {self.iteration}, got {iteration}")
        begun = iteration_blocks(self.layout, iteration, blocks, lanes, first)
        self.query.forget()
        self._history.forget(iteration)
        known = self._history.of(iteration)
        begun.check_known(known)
        begun.open -= known.keys()
        self._blocks = begun
        self._owner = self._recipient = None
        self._reach, self._reached = self._slots if self._follows else self._window, 0
        self._launched.clear()
        self._in_flight.begin(now if known else None)
        delivered: list[tuple[Result, int | None]] = [(known[block], None) for block in sorted(known)]
        instructions: list[Instruction] = [_deliver(delivered, now)] if known else []
        if not begun.open:
            instructions.append(Complete(iteration=iteration))
        return instructions + self._pull(now)

    def contribute(
        self,
        block: int,
        packed: Packed,
        *,
        now: float,
        part: int = 0,
        counts: bool = True,
        uses: int | None = None,
    ) -> list[Instruction]:
        """Call contribute_all() with one block."""
        return self.contribute_all([(block, packed)], now=now, part=part, counts=counts, uses=uses)

    def contribute_all(
        self,
        ready: Iterable[tuple[int, Packed]],
        *,
        now: float,
        part: int = 0,
        counts: bool = True,
        uses: int | None = None,
    ) -> list[Instruction]:
        """Contribute this part to blocks; closed ones are passed over.

        `counts`: whether the part counts among the k. `uses`: the lanes that the worker now uses, where a slot wanted
        others for a block (None: the block's); the others are told if they are narrower than planned.
        """
        if self.left_behind:
            return []
        instructions: list[Instruction] = []
        for block, (values, scale, lanes, weight) in ready:
            if block in self._blocks.open:
                self.layout.words_of(block, lanes)  # raises for lanes in which the block cannot be sent
                flags = self._blocks.flags(lanes if uses is None else uses)
                self._waiting[request_of(block, part)] = _Waiting(values, scale, lanes, weight, flags, counts)
                instructions += self._launch_waiting(self._blocks.place(block), now)
        return instructions + self._pull(now)

    def packet_in(self, header: KofnHeader, values: bytes, now: float) -> list[Instruction]:
        """Take an answer of the switch."""
        return self.packets_in([(header, values)], now)

    def packets_in(self, packets: Iterable[tuple[KofnHeader, bytes]], now: float) -> list[Instruction]:
        """Take answers of the switch that arrived together: headers and values."""
        instructions: list[Instruction] = []
        news, job, generation = _News(), self._template.job, self.generation
        for header, values in packets:
            kind = header.kind
            impossible = self.iteration and header.iteration - self.iteration >= 65535
            if header.job != job or not _RESULT <= kind <= Kind.ADDED or impossible:
                self.statistics.foreign += 1
            elif header.generation != generation:
                self.statistics.other_generation += 1
            elif kind in _RESULTS:
                self._result(header, values, news)
            else:
                instructions += self._go_on(news, now)
                news = _News()
                if not self.query.hears(header):
                    instructions += self._not_taken(header, now)
        return instructions + self._go_on(news, now)

    def results_in(self, results: Iterable[Result], now: float) -> list[Instruction]:
        """Take results from a peer. ProtocolError: an earlier copy differs.

        A result of which only the members are known shows that its iteration is over.
        """
        instructions: list[Instruction] = []
        for _, some in groupby(results, lambda result: result.id.iteration):
            news = _News()
            for result in some:
                if not result.weight:
                    self.others_reached(result.id.iteration + 1)
                elif result.values:
                    self._note(result, None, news)
            instructions += self._go_on(news, now) + self._pull(now)
        return instructions

    def follow(self, follows: bool, now: float) -> list[Instruction]:
        """Take results from peers from now on, and send no PULL; or take results from the switch again."""
        self._follows = follows
        if self._owner is None:
            self._reach = self._slots if follows else self._window
        launched = (
            [self._launch_waiting(place, now) for place in range(len(self._blocks.blocks))] if self._waiting else []
        )
        return [*chain.from_iterable(launched), *self._pull(now)]

    def timer(self, now: float) -> list[Instruction]:
        """Retransmit the requests that are due."""
        return [instruction for request in self._in_flight.due(now) for instruction in self._send_again(request, now)]

    def ask_slot(self) -> list[Instruction]:
        """Ask the switch for the members of the first open block; `query` takes the answer. Does nothing while
        regrouping.
        """
        if self.regrouping or not self._blocks.open:
            return []
        asked = self.query.ask(self._request(self.missing[0]), self.layout)
        return [Send(asked, bytes(asked.words * WORD_BYTES))]

    def leaves(self, sent: Send, at: float) -> None:
        """Note that a packet leaves this host only then, so its answer is not due earlier."""
        flight = self._in_flight.find(request_of(sent.header.block, sent.header.part))
        if flight is not None and flight.header is sent.header:
            self._in_flight.leaves(flight, at)

    def withdraw(self, blocks: Iterable[int]) -> list[int]:
        """Take back waiting contributions (part 0) of these blocks that were never sent, and return their blocks."""
        wanted = (block for block in blocks if request_of(block, 0) not in self._launched)
        return [block for block in wanted if self._waiting.pop(request_of(block, 0), None) is not None]

    def enter(self, generation: int) -> None:
        """Use the slots of this generation, if no newer one is known; before the first begin()."""
        self._template = self._template._replace(generation=max(generation, self.generation))

    def jump(
        self,
        iteration: int,
        now: float,
        blocks: Sequence[int] | None = None,
        lanes: int = Lanes.BITS_32,
        first: int | None = None,
    ) -> list[Instruction]:
        """Abandon the open blocks and begin a later iteration: the parameters came from a peer."""
        self._blocks.open.clear()
        self._in_flight.clear()
        self._waiting.clear()
        return self.begin(iteration, now, blocks, lanes, first)

    def others_reached(self, iteration: int) -> None:
        """Note that another worker has begun this iteration, so all earlier ones are complete and can be pulled."""
        self._newest = max(self._newest, iteration)

    def in_pieces(self, level: Iterable[int] | None = None) -> None:
        """Note that gradients of this iteration come in pieces: a silence may mean that workers compute."""
        self._in_flight.in_pieces = True
        self._in_flight.level = None if level is None else [*level]

    def owned(self, owner: Sequence[int], span: int, now: float) -> list[Instruction]:
        """Declare the blocks of the begun iteration owned: each is contributed by one worker and delivered to all.

        `owner`: by block; among any `span` consecutive blocks each worker owns at least one. A block may leave once all
        blocks up to the one `reach` places before it are closed.
        """
        reach = min(self._window, self._slots // 2 + 1 - span)
        if reach < 1:
            raise ProtocolError(
                f"blocks that may each be another worker's must be at most {self._slots // 2} (half of {self._slots}"
                f" slots), got {span}"
            )
        self._owner, self._reach = owner, reach
        self._in_flight.owned, self._in_flight.level = True, [*owner]
        return self._launch_owned(now)

    def received(self, recipient: Sequence[int]) -> None:
        """Declare that each block's sum in the begun iteration goes to one worker."""
        self._recipient = recipient

    def regroup(self, generation: int) -> None:
        """Send nothing until resume(), and drop answers of earlier generations: the switch has lost its slots."""
        if generation <= self.generation:
            return  # known already
        self._template = self._template._replace(generation=generation)
        self.regrouping = True
        self.statistics.regroups += 1
        for request, flight in (*self._in_flight.by_request.items(), *self._in_flight.merged.items()):
            if flight.header.kind == Kind.CONTRIBUTE:
                mine = flight.header
                self._waiting[request] = _Waiting(
                    flight.values, mine.scale, mine.lanes, mine.weight, mine.flags & ~Flag.AGAIN, bool(mine.count)
                )
        self._in_flight.clear()
        self._blocks.slot_lanes.clear()
        self._in_flight.begin(None)

    def resume(self, now: float) -> list[Instruction]:
        """Send all open blocks: every worker has regrouped, and the results of peers are known."""
        self.regrouping = False
        places = sorted({self._blocks.place(request // PARTS) for request in self._waiting})
        return [send for place in places for send in self._launch_waiting(place, now)] + self._pull(now)

    # -- state for callers

    @property
    def layout(self) -> BlockLayout:
        return self._blocks.layout

    @property
    def iteration(self) -> int:
        """The current iteration; 0 before the first."""
        return self._blocks.iteration

    @property
    def blocks(self) -> Sequence[int]:
        """The blocks of the current iteration, ascending."""
        return self._blocks.blocks

    @property
    def generation(self) -> int:
        """The generation of the slots in use."""
        return self._template.generation

    @property
    def deadline(self) -> float | None:
        """When timer() is due; None while no request is in flight."""
        return self._in_flight.deadline

    @property
    def wire_bytes(self) -> int:
        """The statistics' wire bytes."""
        return self.statistics.wire_bytes

    @property
    def left_behind(self) -> bool:
        """Whether the others have finished the current iteration: a result of a later one was seen."""
        return self._newest > self.iteration

    @property
    def over(self) -> bool:
        """Whether the current iteration is over here or elsewhere: its blocks are closed, or a result of a later one
        was seen.
        """
        return not self._blocks.open or self.left_behind

    def is_over(self, iteration: int) -> bool:
        """Whether an iteration that began here is over, here or elsewhere."""
        return self.over or self.iteration > iteration

    @property
    def missing(self) -> list[int]:
        """The open blocks of the current iteration, ascending."""
        return sorted(self._blocks.open)

    @property
    def share(self) -> float:
        """The closed share of the current iteration's blocks, 0 to 1."""
        return 1 - len(self._blocks.open) / max(1, len(self._blocks.blocks))

    @property
    def open(self) -> Collection[int]:
        """The open blocks of the current iteration."""
        return self._blocks.open

    @property
    def waiting_count(self) -> int:
        return sum(waits.counts for waits in self._waiting.values())

    @property
    def waiting(self) -> Collection[int]:
        """The blocks whose part 0 waits for the window."""
        return [request // PARTS for request in self._waiting if not request % PARTS]

    def results(self, first: int, last: int) -> Iterator[Result]:
        """Yield the known results of iterations first..last, in order, for a peer."""
        return self._history.results(first, last)

    def results_of(self, iteration: int) -> BlockResults:
        known = self._history.of(iteration)
        return BlockResults.of([known[block] for block in sorted(known)])

    # -- internal

    def _result(self, header: KofnHeader, values: bytes, news: "_News") -> None:
        """Take the switch's result of a block."""
        block, blocks = header.block, self._blocks
        if block >= blocks.total:  # a block of another job is ignored
            return
        short = header.recipient not in (EVERYONE, self._places[self.rank]) and not header.words
        if not short and (block == blocks.layout.blocks or blocks.sums.get(header.lanes) != header.words):
            check_words(blocks.layout, header)
        wanted = self._racks if self._racks > 1 else 0
        if header.bitmaps != wanted:
            found = f"{wanted} member bitmaps in a job with job.racks = {self._racks}, got {header.bitmaps}"
            raise ProtocolError(f"a result must have {found}")
        self._check_recipient(header)
        told = hint(header) if header.kind == _RESULT else None
        self._note(_result(header, values), told, news, to_again=bool(header.flags & Flag.AGAIN))

    def _check_recipient(self, header: KofnHeader) -> None:
        """Check that a sum's recipient is the one that this worker was told."""
        if self._recipient is None or header.iteration != self.iteration:
            return
        expected = self._recipient[header.block]
        if self._recipient_of(header.block) != header.recipient:
            raise ProtocolError(
                f"block {header.block} of iteration {header.iteration} is summed for worker {header.recipient}, here it"
                f" is worker {expected}'s: the workers' plans have parted"
            )

    def _note(self, result: Result, hint: int | None, news: "_News", *, to_again: bool = False) -> None:
        """Keep a result. If it closes a current block, all requests for the block end."""
        (iteration, block), blocks = result.id, self._blocks
        if block >= blocks.total or iteration < blocks.iteration:
            return
        known = self._history.of(iteration)
        if block in known:
            check_same(known[block], result)
            return
        if iteration == blocks.iteration and block not in blocks.open:
            blocks.check_known([block])
        known[block] = result
        news.any = True
        if iteration >= self._newest:
            self._newest, self.k = iteration, result.k
        if iteration == blocks.iteration:
            blocks.open.discard(block)
            for part in range(PARTS) if self._waiting else ():
                self._waiting.pop(request_of(block, part), None)
            news.delivered.append((result, hint))
            if to_again:
                news.to_again.update(request_of(block, part) for part in range(PARTS))
            if self._everyone and result.members & self._everyone == self._everyone:
                self.given = iteration
                self._history.forget(iteration, all_given=True)

    def _go_on(self, news: "_News", now: float) -> list[Instruction]:
        """Act on noted results, if there are any."""
        if not news.any:
            return []
        instructions: list[Instruction] = [_deliver(news.delivered, now)] if news.delivered else []
        if news.delivered and not self._blocks.open:
            instructions.append(Complete(iteration=self.iteration))
        flying = self._in_flight.by_request
        closed = [request_of(result.id.block, part) for result, _ in news.delivered for part in range(PARTS)]
        for request in closed:
            self._in_flight.merged.pop(request, None)
        if answered := [request for request in closed if request in flying]:
            self._in_flight.answered(answered, now, news.to_again)
        if self._owner is not None:
            return instructions + self._launch_owned(now) + self._pull(now)
        for result, _ in news.delivered:
            instructions += self._launch_waiting(self._blocks.place(result.id.block) + self._reach, now)
        return instructions + self._pull(now)

    def _not_taken(self, header: KofnHeader, now: float) -> list[Instruction]:
        """Handle STALE, FORMAT_MISMATCH or ADDED; it is ignored unless its request is in flight."""
        request = request_of(header.block, header.part)
        flight = self._in_flight.find(request)
        if header.iteration != self.iteration or flight is None:
            return []
        if header.kind == Kind.STALE:
            return self._stale(flight, now)
        if header.kind == Kind.ADDED:
            return self._repeat(flight, now)
        return self._refused(request, flight, header, now)

    def _repeat(self, flight: InFlightRequest, now: float) -> list[Instruction]:
        """Send a contribution again, so that what a leaf holds leaves; its times stay."""
        if flight.header.kind != Kind.CONTRIBUTE or flight.sent > now:
            return []
        self._count(flight.header, flight.values)
        return [Send(header=flight.header, values=flight.values)]

    def _send_again(self, request: int, now: float) -> list[Instruction]:
        """Retransmit a request; ask peers for a PULL that the switch does not answer."""
        flight = self._in_flight.mark_sent_again(request, now)
        pulls = flight.header.kind == Kind.PULL
        if pulls and self._owner is not None and flight.attempts == EXPECTED + 1:
            self.statistics.pulls += 1
        else:
            self.statistics.retransmissions += 1
        self._count(flight.header, flight.values)
        again: list[Instruction] = [Send(header=flight.header, values=flight.values)]
        if pulls and self._owner is None and flight.attempts >= PULLS_BEFORE_PEERS:
            again += self._ask_peers(flight, stale_in=None)
        return again

    def _request(self, block: int) -> KofnHeader:
        """Return a contribution to an open block, with the header that it would have now."""
        return self._header(request_of(block, 0), _Waiting(b"", 0, self._blocks.lanes(block), 1, 0, True))

    def _pull(self, now: float) -> list[Instruction]:
        """PULL open blocks once the others are ahead: all blocks that are open here are closed there.

        It asks for every open block without a sent request, within the window.
        """
        instructions: list[Instruction] = []
        if not self.left_behind or self.regrouping or self._follows:
            return instructions
        blocks, counted = self._blocks, {request for request, waits in self._waiting.items() if waits.counts}
        asked = self._in_flight.by_request.keys() | counted
        for place, block in enumerate(blocks.blocks):
            if block not in blocks.open or not self._may_leave(place):
                continue
            if any(request_of(block, part) in asked for part in range(PARTS)):
                continue
            self.statistics.pulls += 1
            header = self._request(block)._replace(kind=Kind.PULL)
            instructions.append(self._launch(header, bytes(header.words * WORD_BYTES), now))
        return instructions

    def _launch_owned(self, now: float) -> list[Instruction]:
        """Send own blocks that may leave since others have closed, and expect the others' blocks."""
        instructions: list[Instruction] = []
        blocks, owner = self._blocks, self._owner
        assert owner is not None
        for place in range(self._reached, len(blocks.blocks)):
            if not self._may_leave(place):
                break
            self._reached = place + 1
            block = blocks.blocks[place]
            if owner[block] == self.rank:
                instructions += self._launch_waiting(place, now)
            elif block in blocks.open:
                self._expect(block, now)
        return instructions

    def _expect(self, block: int, now: float) -> None:
        """Wait for the result as if a PULL had been sent; the PULL is sent when it would be repeated."""
        header = self._request(block)._replace(kind=Kind.PULL)
        self._in_flight.launch(request_of(block, 0), header, bytes(header.words * WORD_BYTES), now, expected=True)

    def _may_leave(self, place: int) -> bool:
        """Whether the block at this place of the iteration may be in its slot."""
        before, blocks = place - self._reach, self._blocks
        if before < 0:
            return True
        if self._owner is None:
            return blocks.blocks[before] not in blocks.open
        return not any(block in blocks.open for block in blocks.blocks[: before + 1])

    def _launch_waiting(self, place: int, now: float) -> list[Instruction]:
        """Send the waiting contributions to the block at a place, if it may leave."""
        if self.regrouping or place >= len(self._blocks.blocks) or not self._may_leave(place):
            return []
        requests = [request_of(self._blocks.blocks[place], part) for part in range(PARTS)]
        ready = [(request, self._waiting.pop(request)) for request in requests if request in self._waiting]
        return [self._launch(self._header(request, waits), waits.values, now) for request, waits in ready]

    def _launch(self, header: KofnHeader, values: bytes, now: float) -> Send:
        """Put a request in flight."""
        self._in_flight.launch(request_of(header.block, header.part), header, values, now)
        self._launched.add(request_of(header.block, header.part))
        self._count(header, values)
        return Send(header, values)

    def _count(self, header: KofnHeader, values: bytes) -> None:
        if header.kind == Kind.CONTRIBUTE:
            self.statistics.wire_bytes += len(values)

    def _header(self, request: int, ready: _Waiting) -> KofnHeader:
        blocks, mine = self._blocks, self._template
        block, part = divmod(request, PARTS)
        return KofnHeader(
            job=mine.job,
            worker=mine.worker,
            recipient=self._recipient_of(block),
            lanes=ready.lanes,
            flags=ready.flags,
            words=blocks.words_of(block, ready.lanes),
            generation=mine.generation,
            iteration=blocks.iteration,
            block=block,
            slot=blocks.slot(block) % self._slots,
            scale=ready.scale,
            count=int(ready.counts),
            k=int(self._owner is not None),
            part=part,
            weight=ready.weight,
        )

    def _recipient_of(self, block: int) -> int:
        rank = EVERYONE if self._recipient is None else self._recipient[block]
        return EVERYONE if rank == EVERYONE else self._places[rank]

    def _stale(self, flight: InFlightRequest, now: float) -> list[Instruction]:
        """Handle STALE: the slot has a newer block. An awaited request stays in flight, so that the
        timer repeats it.
        """
        self.statistics.stale += 1
        self._in_flight.heard(now)
        return self._ask_peers(flight, stale_in=self.generation)

    def _ask_peers(self, flight: InFlightRequest, *, stale_in: int | None) -> list[Instruction]:
        """Ask peers, at most once for each time the request is sent."""
        if flight.asked_peers:
            return []
        flight.asked_peers = True
        return [AskPeers(id=BlockId(self.iteration, flight.header.block), stale_in=stale_in)]

    def _refused(self, request: int, flight: InFlightRequest, header: KofnHeader, now: float) -> list[Instruction]:
        """Handle a refusal: encode in the slot's scale and lanes, or pull in them what the others have finished."""
        self.statistics.refused += 1
        check_words(self.layout, header)
        mine = flight.header
        pulls = mine.kind == Kind.PULL  # a PULL's scale means nothing
        if mine.lanes == header.lanes and (pulls or mine.scale == header.scale):
            return []  # it answers an earlier attempt, or is a copy: the network repeats and delays packets
        self._blocks.slot_lanes[header.block] = header.lanes
        self._in_flight.remove(request)
        if pulls or self.left_behind:
            return self._pull(now)
        self._in_flight.disordered = True
        block, part, counts = header.block, header.part, bool(mine.count)
        return [EncodeAgain(block=block, part=part, counts=counts, scale=header.scale, lanes=header.lanes)]


@dataclass(slots=True)
class _News:
    """The news of answers that arrived together: whether there is any, and the results to deliver."""

    any: bool = False
    delivered: list[tuple[Result, int | None]] = field(default_factory=list)
    to_again: set[int] = field(default_factory=set)
    """Requests whose answers came to a retransmitted packet of this or another worker."""


def _deliver(delivered: list[tuple[Result, int | None]], now: float) -> Deliver:
    results, hints = zip(*delivered, strict=True)
    return Deliver(
        BlockResults.of(results), np.array([-1 if hint is None else hint for hint in hints]), np.full(len(hints), now)
    )


def _result(header: KofnHeader, body: bytes) -> Result:
    """Return the result that a RESULT or LATE packet carries; `body`: bitmaps, then values."""
    members, values = header.members, body[MEMBERS_BYTES * header.bitmaps :]
    if header.bitmaps:
        bitmaps = (body[at : at + MEMBERS_BYTES] for at in range(0, MEMBERS_BYTES * header.bitmaps, MEMBERS_BYTES))
        members = sum(int.from_bytes(bitmap) << MEMBERS_BITS * rack for rack, bitmap in enumerate(bitmaps))
    return Result(
        BlockId(header.iteration, header.block),
        header.scale,
        header.lanes,
        header.k,
        header.count,
        header.weight,
        members,
        values,
    )
