"""The loop around the protocol core. It takes gradients, packets, results and timers; it gives packets and the ends of
iterations.

The loop has no socket and no clock: the agent drives the loop over UDP and an event loop; kofn/sim/ drives it in
virtual time.

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

from kofn_common.config.late_rules import RULES, LateRule
from kofn_host.arrays import Floats64, Integers
from kofn_host.compression.encoder import Finished
from kofn_host.compression.plan import Plan
from kofn_host.protocol import core
from kofn_host.protocol.instructions import (
    AskPeers,
    Complete,
    Deliver,
    EncodeAgain,
    Instruction,
    Packed,
    PackedBlocks,
    Send,
)
from kofn_host.protocol.results import BlockResults, Result
from kofn_host.stopwatch import Part


class Sender(Protocol):
    """The part of `compression.encoder.Encoder` that a driver needs."""

    plan: Plan
    slice_blocks: int

    @property
    def current_lanes(self) -> int:
        """The code of the lanes in which blocks are now encoded."""

    @property
    def blocks(self) -> Sequence[int] | Integers:
        """The blocks that the current iteration sends, ascending."""

    @property
    def late(self) -> bool:
        """Whether a sum has closed without a pending gradient."""

    def begin(self, iteration: int) -> None:
        """Begin the iteration of `plan`."""

    def enter_rest(self) -> None:
        """Enter the part of the gradient that slices() have not entered."""

    @property
    def awaits_pieces(self) -> bool:
        """Whether the last entered gradient is still being computed."""

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """Encode the iteration's blocks; yield each slice's blocks, or an empty list while its pieces are awaited."""

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        """Encode pending gradients that have missed `missed` sums, as another part; return the part and its blocks."""

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> PackedBlocks:
        """Return the encoded values of these blocks."""

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """Encode a block at the scale and in the lanes of its slot."""

    def settle(self, results: BlockResults, hints: Integers, times: Floats64) -> None:
        """Book results in the ledger."""

    @property
    def fresh(self) -> Collection[int]:
        """Blocks whose part 0 this process has encoded in this iteration."""

    @property
    def narrows(self) -> bool:
        """Whether unsent blocks should be encoded in narrower lanes."""

    def narrow(self, withdrawn: Iterable[int], iteration: int) -> list[int]:
        """Re-encode withdrawn blocks in narrower lanes; return the blocks that may be sent."""

    def follow(self, results: BlockResults, wire_bytes: int) -> Finished:
        """End an iteration in which values of `wire_bytes` were sent, and make the next iteration's plan."""


class Effects(Protocol):
    """Callbacks of a driver; those with a body are optional."""

    def send(self, packets: Sequence[Send]) -> None:
        """Send packets; not needed if an engine takes the packets from the protocol."""
        return None

    def delivered(self, results: BlockResults) -> None:
        """Handle closed blocks of the current iteration."""

    def completed(self) -> None:
        """Handle the closing of the current iteration's last block: from now on advance() can end the iteration."""
        return None

    def next_iteration(self) -> None:
        """Call end() for the current iteration, and begin the next one."""

    @property
    def queued(self) -> int:
        """Packets that wait in this host's send queue."""

    def ask_peers(self, asked: Sequence[AskPeers]) -> None:
        """Fetch results of the current iteration from peers: the switch does not send them."""

    def during(self, part: Part) -> AbstractContextManager[object]:
        """Return a context manager that counts its time as this part."""


class Driver:
    """One worker's protocol and encoder in a job of `workers` workers; times in seconds of any one clock.

    `slices` replaces the encoder's slices() if an engine encodes and contributes: then all slices are empty.
    `recipients`, (blocks,): each block's recipient, as in Protocol.received(); None: all workers.
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
        """The rule for late gradients."""
        self._effects, self._workers, self._recipients = effects, workers, recipients
        self._begin_slices = slices or encoder.slices
        self._slices: Iterator[list[int]] | None = None  # the gradient's slices that are not encoded yet
        self._wire_bytes = 0  # bytes of values sent before the current iteration
        self._all_closed = False  # whether all results of the current iteration are here

    @property
    def may_merge(self) -> bool:
        """Whether a late gradient may be added without being counted. With k = n it may not: then the late gradient is
        added to a counted contribution."""
        return self.rule.merges and self.protocol.k < self._workers

    # -- iterations

    def begin(self, iteration: int, now: float) -> None:
        """Begin an iteration by its plan, and merge pending gradients that have missed two sums into the iteration."""
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
        """Contribute the last entered gradient, iteration `begun`'s `batch`-th gradient; return whether it counts.

        `whole`: as in feed().
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
        """Contribute pending gradients as another part, in addition to the worker's gradient of the iteration.

        Gradients that have missed one sum or more are merged: they do not count among the k.
        """
        with self._effects.during("encode"):
            part, blocks = self.encoder.encode_part(self.protocol.iteration, self.protocol.missing, missed=missed)
        self._contribute(blocks, now, part=part, counts=not missed)

    def feed(self, now: float, *, whole: bool = False) -> bool:
        """Encode and contribute slice by slice while less than a slice waits to leave.

        `whole`: encode all slices, however many blocks wait.  Return True if slices are left that must wait until fewer
        blocks wait to leave; return False if no slice is left, or if the pieces of the next slice have not arrived.
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
        """Return the next slice's blocks; empty while pieces are awaited, None if no slice is left."""
        if self.protocol.over:
            return [] if self.encoder.awaits_pieces else None
        return next(slices, None)

    def finish_encoding(self) -> None:
        """Enter the rest of the last contributed gradient, if any, without sending it."""
        if self._slices is not None:
            self._slices = None
            with self._effects.during("encode"):
                self.encoder.enter_rest()

    def drop_encoding(self) -> None:
        """Stop encoding without entering the rest."""
        self._slices = None

    def end(self) -> Finished:
        """End the current iteration, whose results are all here."""
        self.finish_encoding()
        wire_bytes = self.protocol.wire_bytes - self._wire_bytes
        return self.encoder.follow(self.protocol.results_of(self.protocol.iteration), wire_bytes)

    def advance(self, beyond: int | None) -> bool:
        """Go on to the iteration that is current elsewhere, for a caller or for a late gradient.

        With `beyond`, stop in an iteration after `beyond` that is not over elsewhere; return whether such an iteration
        was reached.  Without `beyond`, go on while the rule merges and a pending gradient has missed a sum; return
        False.
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
        """Follow the protocol's instructions after packets have arrived."""
        self._follow(instructions, now)
        self._narrow(now)

    def results_in(self, results: Iterable[Result], now: float) -> None:
        self._follow(self.protocol.results_in(results, now), now)

    def follow_peer(self, follows: bool, now: float) -> None:
        """Expect results from a peer, or from the switch again."""
        self._follow(self.protocol.follow(follows, now), now)

    def timer(self, now: float) -> None:
        """Handle the protocol's deadline."""
        self._follow(self.protocol.timer(now), now)

    def resume(self, now: float) -> None:
        """Retransmit after a regroup: the switch admits this job again."""
        self._follow(self.protocol.resume(now), now)

    def ask_slot(self, now: float) -> None:
        """Ask the switch for the members of the first open block; `protocol.query` holds the answer."""
        self._follow(self.protocol.ask_slot(), now)

    def _narrow(self, now: float) -> None:
        """Re-encode waiting blocks in narrower lanes if the encoder wants them."""
        if self.encoder.narrows:
            withdrawn = self.protocol.withdraw(self.encoder.fresh)
            if blocks := self.encoder.narrow(withdrawn, self.protocol.iteration):
                self._contribute(blocks, now)

    # -- instructions

    def _follow(self, instructions: Sequence[Instruction], now: float) -> None:
        """Follow instructions; consecutive instructions of one kind are followed together."""
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
        if completed[-1].iteration == self.protocol.iteration:  # else a replica has replaced this iteration
            self._all_closed = True
            self._effects.completed()

    def _encode_again(self, wanted: Sequence[EncodeAgain], now: float) -> None:
        """Encode blocks again whose slots sum at other scales or in other lanes, and contribute them."""
        with self._effects.during("encode"):
            for again in wanted:
                self.encoder.reencode(again.block, self.protocol.iteration, again.scale, again.lanes, again.part)
        for part, counts in {(again.part, again.counts) for again in wanted}:
            self._contribute([again.block for again in wanted if again.part == part], now, part=part, counts=counts)

    def _contribute(self, blocks: Sequence[int], now: float, *, part: int = 0, counts: bool = True) -> None:
        """Hand the encoded blocks to the protocol."""
        ready = self.encoder.all_packed(blocks, part)
        self._follow(
            self.protocol.contribute_all(ready, part=part, counts=counts, uses=self.encoder.current_lanes, now=now), now
        )


_FOLLOW: Mapping[type[Instruction], Callable[[Driver, Any, float], None]] = {
    Send: Driver._send,
    Deliver: Driver._deliver,
    Complete: Driver._complete,
    EncodeAgain: Driver._encode_again,
    AskPeers: lambda driver, asked, now: driver._effects.ask_peers(asked),
}
"""The method that follows each kind of instruction."""
