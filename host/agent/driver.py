"""The loop around the protocol core: gradients, packets, results and timers in; packets and iteration ends out.

No socket and no clock: the agent drives it over UDP and an event loop, sim/ in virtual time.

    driver.begin(1, now)
    encoder.enter(gradient, 1)
    driver.contribute(1, 0, now)         # -> effects.send()
    driver.packets_in(packets, now)      # -> effects.delivered(), effects.completed()
    finished = driver.end(results)       # then begin(2, now)
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, Protocol

from kofn.config.late_rules import RULES, LateRule
from kofn.host.compression.encoder import Finished
from kofn.host.compression.plan import Plan
from kofn.host.protocol import core
from kofn.host.protocol.history import Result
from kofn.host.protocol.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Packed, Send
from kofn.host.stopwatch import Part
from kofn.host.wire.packet import Kind, KofnHeader


class Sender(Protocol):
    """What a driver needs of `compression.encoder.Encoder`."""

    plan: Plan
    uses: int
    slice_blocks: int

    @property
    def blocks(self) -> list[int]:
        """All that the current iteration sends, ascending."""

    @property
    def waits(self) -> bool:
        """Whether any gradient is pending."""

    def waits_since(self, iteration: int) -> bool:
        """Whether one is pending that was begun before this iteration."""

    def begin(self, iteration: int) -> None:
        """The iteration of `plan` begins."""

    def enter_rest(self) -> None:
        """Enter what slices() have not entered of the gradient."""

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """Encode what the iteration sends; the blocks of each slice as soon as it is encoded."""

    def encode_part(self, iteration: int, open: Collection[int], *, counts: bool) -> tuple[int, list[int]]:
        """Encode what is pending as another part of the contribution: the part, and its blocks."""

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> list[tuple[int, Packed]]:
        """What was encoded of these blocks."""

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """Encode a block at the scale and in the lanes of its slot."""

    def mark_sent(self, block: int, values: bytes, part: int = 0) -> None:
        """A contribution has left."""

    def settle(self, delivered: Sequence[Deliver], now: float) -> None:
        """Results are here."""

    def narrowed(self, waiting: Iterable[int], iteration: int) -> list[int]:
        """Which of the waiting blocks were encoded anew, in narrower lanes."""

    def follow(self, results: Sequence[Result]) -> Finished:
        """An iteration is over: the next one's plan."""


class Effects(Protocol):
    """What a driver wants done, and tells."""

    def send(self, packets: Sequence[Send]) -> None:
        """Hand packets to the network."""

    def delivered(self, results: Sequence[Result]) -> None:
        """These blocks of the current iteration have closed."""

    def completed(self) -> None:
        """All have."""

    @property
    def queued(self) -> int:
        """Packets that wait in this host for their turn to leave."""

    def ask_peers(self) -> None:
        """Peers hold results of the current iteration that the switch has forgotten."""

    def encoded(self) -> None:
        """Nothing more is to be encoded of the gradient that was contributed last."""

    def during(self, part: Part) -> AbstractContextManager[object]:
        """Around what takes time, by what it is spent on."""


class Driver:
    """One worker's protocol and encoder, in a job of so many workers; times in seconds, of any one clock."""

    def __init__(self, protocol: core.Protocol, encoder: Sender, effects: Effects, *, workers: int) -> None:
        self.protocol, self.encoder = protocol, encoder
        self.rule: LateRule = RULES["stash"]
        """For late gradients."""
        self._effects, self._workers = effects, workers
        self._slices: Iterator[list[int]] | None = None  # what is still to be encoded of the gradient

    @property
    def may_merge(self) -> bool:
        """Whether a late gradient may be added without being counted: where all are waited for it goes with what is."""
        return self.rule.merges and self.protocol.k < self._workers

    @property
    def encoding(self) -> bool:
        """Whether something is still to be encoded of the gradient that was contributed last."""
        return self._slices is not None

    # -- iterations

    def begin(self, iteration: int, now: float) -> None:
        """Begin an iteration by its plan; what has waited for a whole one is merged into it."""
        self.finish_encoding()
        self.encoder.begin(iteration)
        begin = self.protocol.jump if self.protocol.missing else self.protocol.begin
        self._follow(begin(iteration, now, self.encoder.blocks, self.encoder.plan.lanes), now)
        if self.may_merge and not self.protocol.over and self.encoder.waits_since(iteration - 1):
            self.contribute_pending(now, counts=False)

    def contribute(self, begun: int, batch: int, now: float, *, whole: bool) -> bool:
        """Contribute the gradient that was entered last, begun in iteration `begun` as its `batch`-th one.

        Returns whether it counts among the k.  `whole`: as feed().
        """
        if begun < self.protocol.iteration and not self.rule.counts:
            self.encoder.enter_rest()
            if self.may_merge:
                self.contribute_pending(now, counts=False)
            self._effects.encoded()
            return False
        if batch:
            self.contribute_pending(now, counts=True)
        else:
            self._slices = self.encoder.slices(self.protocol.iteration)
            self.feed(now, whole=whole)
        return True

    def contribute_pending(self, now: float, *, counts: bool) -> None:
        """Contribute what is pending as another part, beside what this worker gives to the iteration anyway."""
        with self._effects.during("encode"):
            part, blocks = self.encoder.encode_part(self.protocol.iteration, self.protocol.open, counts=counts)
        self._contribute(blocks, now, part=part, counts=counts)

    def feed(self, now: float, *, whole: bool = False) -> None:
        """Encode and contribute slice by slice while less than a slice waits to leave; `whole`: all that is left."""
        ahead = self.encoder.slice_blocks
        while self._slices is not None and (whole or len(self.protocol.waiting) + self._effects.queued < ahead):
            with self._effects.during("encode"):
                blocks = None if self.protocol.over else next(self._slices, None)
            if blocks is None:
                self.finish_encoding()
            else:
                with self._effects.during("send"):
                    self._contribute(blocks, now)

    def finish_encoding(self) -> None:
        """Enter the rest of the gradient that was contributed last, if there is one; it is not sent any more."""
        if self._slices is not None:
            self._slices = None
            with self._effects.during("encode"):
                self.encoder.enter_rest()
            self._effects.encoded()

    def drop_encoding(self) -> None:
        """As finish_encoding(), but leave the rest to whoever enters it."""
        self._slices = None

    def end(self, results: Sequence[Result]) -> Finished:
        """The current iteration is over, with these results of all its blocks, ascending."""
        self.finish_encoding()
        return self.encoder.follow(results)

    # -- events

    def packets_in(self, packets: Iterable[tuple[KofnHeader, bytes]], now: float) -> None:
        self._follow(self.protocol.packets_in(packets, now), now)
        if blocks := self.encoder.narrowed(self.protocol.waiting, self.protocol.iteration):
            self._contribute(blocks, now)

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

    # -- instructions

    def _follow(self, instructions: Sequence[Instruction], now: float) -> None:
        """Do what the protocol says: neighbours of a kind are done together."""
        for kind, alike in groupby(instructions, type):
            _FOLLOW[kind](self, list(alike), now)

    def _send(self, packets: Sequence[Send], now: float) -> None:
        with self._effects.during("send"):
            for header, values in packets:
                if header.kind == Kind.CONTRIBUTE:
                    self.encoder.mark_sent(header.block, values, header.part)
            self._effects.send(packets)

    def _deliver(self, delivered: Sequence[Deliver], now: float) -> None:
        self.encoder.settle(delivered, now)
        with self._effects.during("decode"):
            self._effects.delivered([result for result, _ in delivered])

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
            self.protocol.contribute_all(ready, part=part, counts=counts, uses=self.encoder.uses, now=now), now
        )


_FOLLOW: Mapping[type[Instruction], Callable[[Driver, Any, float], None]] = {
    Send: Driver._send,
    Deliver: Driver._deliver,
    Complete: lambda driver, _, now: driver._effects.completed(),
    EncodeAgain: Driver._encode_again,
    AskPeers: lambda driver, _, now: driver._effects.ask_peers(),
}
"""What is done for each kind of instruction."""
