"""The loop around the protocol core: gradients, packets, results and timers in; packets and iteration ends out.

No socket and no clock: the agent drives it over UDP and an event loop, kofn/sim/ in virtual time.

    driver.begin(1, now)
    encoder.enter(gradient, 1)
    driver.contribute(1, 0, now)         # -> effects.send()
    driver.follow(instructions, now)     # -> effects.delivered(), effects.completed()
    driver.advance(1)                    # -> effects.next_iteration(): driver.end(), driver.begin(2, now)
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, Protocol

from kofn.config.late_rules import RULES, LateRule
from kofn.host.arrays import Floats64, Integers
from kofn.host.compression.encoder import Finished
from kofn.host.compression.plan import Plan
from kofn.host.protocol import core
from kofn.host.protocol.instructions import (
    AskPeers,
    Complete,
    Deliver,
    EncodeAgain,
    Instruction,
    Packed,
    PackedBlocks,
    Send,
)
from kofn.host.protocol.results import BlockResults, Result
from kofn.host.stopwatch import Part


class Sender(Protocol):
    """What a driver needs of `compression.encoder.Encoder`."""

    plan: Plan
    slice_blocks: int

    @property
    def current_lanes(self) -> int:
        """The code of the lanes that blocks are encoded in by now."""

    @property
    def blocks(self) -> list[int]:
        """All that the current iteration sends, ascending."""

    @property
    def late(self) -> bool:
        """Whether a sum has closed without a gradient that is pending."""

    def begin(self, iteration: int) -> None:
        """The iteration of `plan` begins."""

    def enter_rest(self) -> None:
        """Enter what slices() have not entered of the gradient."""

    @property
    def awaits_pieces(self) -> bool:
        """Whether the gradient that was entered last is still computed."""

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """Encode what the iteration sends; the blocks of each slice as soon as it is encoded, none while its pieces are
        awaited."""

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        """Encode pending gradients that have `missed` so many sums as another part; return the part and its blocks."""

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> PackedBlocks:
        """What was encoded of these blocks."""

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """Encode a block at the scale and in the lanes of its slot."""

    def settle(self, results: BlockResults, hints: Integers, times: Floats64) -> None:
        """Results are here."""

    @property
    def fresh(self) -> Collection[int]:
        """Blocks whose part 0 this process has encoded in this iteration."""

    @property
    def narrows(self) -> bool:
        """Whether what has never left is to be encoded in narrower lanes."""

    def narrow(self, withdrawn: Iterable[int], iteration: int) -> list[int]:
        """Encode blocks that were withdrawn anew, in narrower lanes; which may be sent."""

    def follow(self, results: BlockResults, wire_bytes: int) -> Finished:
        """An iteration is over, in which values of so many bytes were sent: the next one's plan."""


class Effects(Protocol):
    """Callbacks of a driver; those that have a body may be left out."""

    def send(self, packets: Sequence[Send]) -> None:
        """Hand packets to the network, unless an engine takes them from the protocol itself."""
        return None

    def delivered(self, results: BlockResults) -> None:
        """These blocks of the current iteration have closed."""

    def completed(self) -> None:
        """All blocks of the current iteration have closed: advance() goes on."""
        return None

    def next_iteration(self) -> None:
        """End the current iteration by end(), and begin the next one."""

    @property
    def queued(self) -> int:
        """Packets that wait in this host for their turn to leave."""

    def ask_peers(self) -> None:
        """Peers hold results of the current iteration that the switch has forgotten."""

    def during(self, part: Part) -> AbstractContextManager[object]:
        """Around what takes time, by what it is spent on."""


class Driver:
    """One worker's protocol and encoder, in a job of so many workers; times in seconds, of any one clock.

    `slices`: as the encoder's, where it may be somebody else who encodes and contributes them: then all are empty.
    `recipients`, (blocks,): whose each block's sum is, as of Protocol.received(); None: all workers'.
    """

    def __init__(
        self,
        protocol: core.Protocol,
        encoder: Sender,
        effects: Effects,
        *,
        workers: int,
        slices: Callable[[int], Iterator[list[int]]] | None = None,
        recipients: Integers | None = None,
    ) -> None:
        self.protocol, self.encoder = protocol, encoder
        self.rule: LateRule = RULES["stash"]
        """For late gradients."""
        self._effects, self._workers, self._recipients = effects, workers, recipients
        self._begin_slices = slices or encoder.slices
        self._slices: Iterator[list[int]] | None = None  # what is still to be encoded of the gradient
        self._wire_bytes = 0  # sent until the current iteration began
        self._all_closed = False  # whether the current iteration is over, with all results

    @property
    def may_merge(self) -> bool:
        """Whether a late gradient may be added without being counted: where all are waited for it goes with what is."""
        return self.rule.merges and self.protocol.k < self._workers

    # -- iterations

    def begin(self, iteration: int, now: float) -> None:
        """Begin an iteration by its plan, and merge pending gradients that have missed two sums into it."""
        self.finish_encoding()
        self._all_closed = False
        self.encoder.begin(iteration)
        self._wire_bytes = self.protocol.wire_bytes
        plan, jump = self.encoder.plan, bool(self.protocol.missing)
        wanted = self.protocol.begin(iteration, now, self.encoder.blocks, plan.lanes, plan.first, jump=jump)
        if self._recipients is not None:
            self.protocol.received(self._recipients)
        self._follow(wanted, now)
        if self.may_merge and not self.protocol.over:
            self.contribute_pending(now, missed=2)

    def contribute(self, begun: int, batch: int, now: float, *, whole: bool) -> bool:
        """Contribute the gradient that was entered last, begun in iteration `begun` as its `batch`-th one.

        Returns whether it counts among the k.  `whole`: as feed().
        """
        if begun < self.protocol.iteration and not self.rule.counts:
            self.encoder.enter_rest()
            if self.may_merge:
                self.contribute_pending(now, missed=1)
            return False
        if batch:
            self.contribute_pending(now, missed=0)
        else:
            slices = self.encoder.slices if whole else self._begin_slices
            self._slices = slices(self.protocol.iteration)
            self.feed(now, whole=whole)
        return True

    def contribute_pending(self, now: float, *, missed: int) -> None:
        """Contribute pending gradients as another part, beside the worker's own gradient of the iteration.

        Gradients that have `missed` one sum or more are merged: they count among no k.
        """
        with self._effects.during("encode"):
            part, blocks = self.encoder.encode_part(self.protocol.iteration, self.protocol.missing, missed=missed)
        self._contribute(blocks, now, part=part, counts=not missed)

    def feed(self, now: float, *, whole: bool = False) -> bool:
        """Encode and contribute slice by slice while less than a slice waits to leave; `whole`: all that is left.

        Returns whether the rest waits for room: nothing is left otherwise, or its pieces are not there yet.
        """
        ahead = self.encoder.slice_blocks
        while self._slices is not None and (whole or self.protocol.waiting_count + self._effects.queued < ahead):
            with self._effects.during("encode"):
                blocks = self._next_slice(self._slices)
            if blocks is None:
                self.finish_encoding()
            elif not blocks:
                return False
            else:
                with self._effects.during("send"):
                    self._contribute(blocks, now)
        return self._slices is not None

    def _next_slice(self, slices: Iterator[list[int]]) -> list[int] | None:
        """None: no more is sent; empty: its pieces are not there yet."""
        if self.protocol.over:
            return [] if self.encoder.awaits_pieces else None
        return next(slices, None)

    def finish_encoding(self) -> None:
        """Enter the rest of the gradient that was contributed last, if there is one; it is not sent any more."""
        if self._slices is not None:
            self._slices = None
            with self._effects.during("encode"):
                self.encoder.enter_rest()

    def drop_encoding(self) -> None:
        """As finish_encoding(), but leave the rest to whoever enters it."""
        self._slices = None

    def end(self) -> Finished:
        """The current iteration is over, with results of all its blocks."""
        self.finish_encoding()
        wire_bytes = self.protocol.wire_bytes - self._wire_bytes
        return self.encoder.follow(self.protocol.results_of(self.protocol.iteration), wire_bytes)

    def advance(self, beyond: int | None) -> bool:
        """Go on to the iteration that is current elsewhere, for a caller or for a late gradient.

        With `beyond`, go on until the protocol is beyond that iteration, and in one that is not over elsewhere; return
        whether it is.  Without, go on while the rule merges and a gradient waits that a sum has closed without.
        """
        while beyond is not None or (self.rule.merges and self.encoder.late):
            if beyond is not None and self.protocol.iteration > beyond and not self.protocol.over:
                return True
            if not self._all_closed:
                return False
            self._effects.next_iteration()
        return False

    # -- events

    def follow(self, instructions: Sequence[Instruction], now: float) -> None:
        """Do what the protocol wants done after packets have come."""
        self._follow(instructions, now)
        self._narrow(now)

    def results_in(self, results: Iterable[Result], now: float) -> None:
        for result in results:
            self._follow(self.protocol.result_in(result, now), now)

    def timer(self, now: float) -> None:
        """The protocol's deadline has passed."""
        self._follow(self.protocol.timer(now), now)

    def resume(self, now: float) -> None:
        """The switch admits this job again."""
        self._follow(self.protocol.resume(now), now)

    def ask_slot(self, now: float) -> None:
        """Ask the switch who is in the first open block; `protocol.query` holds the answer."""
        self._follow(self.protocol.ask_slot(), now)

    def _narrow(self, now: float) -> None:
        """What waits is sent in narrower lanes, where these are wished for by now."""
        if self.encoder.narrows:
            withdrawn = self.protocol.withdraw(self.encoder.fresh)
            if blocks := self.encoder.narrow(withdrawn, self.protocol.iteration):
                self._contribute(blocks, now)

    # -- instructions

    def _follow(self, instructions: Sequence[Instruction], now: float) -> None:
        """Do what the protocol says: neighbours of a kind are done together."""
        for kind, alike in groupby(instructions, type):
            _FOLLOW[kind](self, list(alike), now)

    def _send(self, packets: Sequence[Send], now: float) -> None:
        with self._effects.during("send"):
            self._effects.send(packets)

    def _deliver(self, delivered: Sequence[Deliver], now: float) -> None:
        for results, hints, times in delivered:
            self.encoder.settle(results, hints, times)
            with self._effects.during("decode"):
                self._effects.delivered(results)

    def _complete(self, completed: Sequence[Complete], now: float) -> None:
        if completed[-1].iteration == self.protocol.iteration:  # else a replica has come instead
            self._all_closed = True
            self._effects.completed()

    def _encode_again(self, wanted: Sequence[EncodeAgain], now: float) -> None:
        """Slots sum at other scales, or in other lanes."""
        with self._effects.during("encode"):
            for each in wanted:
                self.encoder.reencode(each.block, self.protocol.iteration, each.scale, each.lanes, each.part)
        for part, counts in {(each.part, each.counts) for each in wanted}:
            self._contribute([each.block for each in wanted if each.part == part], now, part=part, counts=counts)

    def _contribute(self, blocks: Sequence[int], now: float, *, part: int = 0, counts: bool = True) -> None:
        """Hand blocks to the protocol, as they are noted in the ledger."""
        ready = self.encoder.all_packed(blocks, part)
        self._follow(
            self.protocol.contribute_all(ready, part=part, counts=counts, uses=self.encoder.current_lanes, now=now), now
        )


_FOLLOW: Mapping[type[Instruction], Callable[[Driver, Any, float], None]] = {
    Send: Driver._send,
    Deliver: Driver._deliver,
    Complete: Driver._complete,
    EncodeAgain: Driver._encode_again,
    AskPeers: lambda driver, _, now: driver._effects.ask_peers(),
}
"""What is done for each kind of instruction."""
