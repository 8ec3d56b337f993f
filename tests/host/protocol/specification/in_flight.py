"""Requests that no result has answered yet, and when each of them is sent again.

Three things tell that something was lost: a request that was sent later has been answered (soon after, with patience
for packets that changed places); nothing at all has been answered for longer than usual (then the oldest requests are
repeated, one at first); and before an iteration's first answer a long wait, because k workers must be there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kofn.host.wire.packet import KofnHeader
from tests.host.protocol.specification.timeout import RTO_MAX_S, ReorderingWindow, Timeout

DOUBTS = 16
"""Answers to repeated requests: once a link has become slower, so many of them say nothing of what was overtaken."""


@dataclass(slots=True)
class InFlightRequest:
    """A request of ours that no result has answered yet."""

    header: KofnHeader
    values: bytes
    order: int  # of sending, among all requests
    first_order: int  # of sending it for the first time
    first_sent: float
    sent: float  # to come, while it waits for its turn to leave
    deadline: float = math.inf  # finite once a request that was sent later has been answered
    attempts: int = 1
    asked_peers: bool = False
    doubtful: bool = False  # it has a deadline, but only for answers to what was repeated in a silence


PATIENT = 4


class InFlight:
    """The flights of the current iteration by request (protocol.instructions); times in seconds, of any clock."""

    def __init__(self, rto_s: float) -> None:
        self.by_request: dict[int, InFlightRequest] = {}
        """In the order of their latest sending, in which they leave."""
        self.silent_from = 0.0
        """How long nothing at all was answered counts from here."""
        self._waiting_timeout = Timeout(rto_s)  # until an iteration's first answer: k workers must be there
        self._moving_timeout = Timeout(rto_s, spare=1.0)  # from one answer to the next: the network alone
        self._answer_timeout = Timeout(rto_s)  # from a request to its answer
        self._patience = ReorderingWindow()
        self._soonest = math.inf  # no flight's deadline is before
        self._order = 0
        self._probes = 0  # since the last answer
        self.disordered = False
        """A slot has refused a request of this iteration: workers do not send in one order any more."""
        self.in_pieces = (
            False  # gradients of this iteration come in pieces: in a silence others may compute the next ones
        )
        self.level: list[int] | None = (
            None  # by block of such a gradient: those of one leave in the same order everywhere
        )
        self.probed: set[int] = set()
        """Requests of this iteration that were sent again because of a silence."""
        self._doubts = 0  # answers to repeated requests that are taken for those to the first attempt
        self._heard_at = 0.0  # when the last answer came, or a request was sent when there was none
        self._moving_since: float | None = None  # when the first block of this iteration closed
        self._all_left_at = 0.0  # when the last flight leaves that did not leave at once

    @property
    def deadline(self) -> float | None:
        """When something is due; None while nothing is in flight."""
        if not self.by_request:
            return None
        return min(self.probe_at, self._soonest)

    @property
    def probe_at(self) -> float:
        """When something is sent again because nothing at all is answered."""
        return self.silent_from + self._silence_s()

    def begin(self, moving_since: float | None) -> None:
        """A new iteration; since when its blocks close, if they do already."""
        self._moving_since = moving_since
        self.disordered = self.in_pieces = False
        self.level = None
        self.probed.clear()

    def late(self, request: int) -> None:
        """A request came after its block was closed: if that was answered before, it was repeated in vain.

        Only what a silence had repeated counts; what was overtaken is often repeated for another worker's loss.  What
        is due because of such answers is not any more.
        """
        if request in self.probed and request not in self.by_request:
            self.probed.discard(request)
            self._doubts = DOUBTS
            for flight in self.by_request.values():
                if flight.doubtful:
                    flight.deadline = math.inf

    def launch(self, request: int, header: KofnHeader, values: bytes, now: float) -> None:
        if not self.by_request:
            self.heard(now)
        self._order = order = self._order + 1
        self.by_request[request] = InFlightRequest(header, values, order, order, now, now)

    def leaves(self, flight: InFlightRequest, at: float) -> None:
        """A request that was launched or repeated just now leaves later, after all those before it."""
        flight.sent = at
        if flight.attempts == 1:
            flight.first_sent = at
        self._all_left_at = at
        if self._first_leaves(at) >= at:
            self.silent_from = at

    def heard(self, now: float) -> None:
        """The switch has answered something, or nothing was asked before."""
        self._probes = 0
        self._heard_at = now
        self.silent_from = self._since(now)

    def answered(self, requests: Sequence[int], now: float) -> None:
        """Learn from answers that have come together: how long answers take, and which requests are hardly waited for
        any more.

        k workers had sent these blocks, and all that they had sent before; so what I sent before them will be answered
        soon, or something was lost (as RFC 8985 has it).
        """
        flights = {request: self.by_request.pop(request) for request in requests}
        moving_since = self._learn_wait(flights[requests[0]], now)
        newest: dict[int, int] = {}
        probes: dict[int, int] = {}
        for request, flight in flights.items():
            level, order = self._level(flight), self._learn(flight, moving_since, now)
            of = probes if request in self.probed else newest
            of[level] = max(of.get(level, 0), order)
        last = max([*newest.values(), *probes.values()])
        self.heard(now)
        for other in self.by_request.values():
            if other.order > last:
                return
            by, by_probe = self._overtaker(other, newest), self._overtaker(other, probes)
            if by or by_probe:
                self._miss(other, now, by or ("probe" if by_probe == "same" else "lower"))
            self._soonest = min(self._soonest, other.deadline)

    def _learn_wait(self, flight: InFlightRequest, now: float) -> float:
        """From the first of answers that have come together, how long they were waited for; since when blocks close.

        An answer that comes one round trip after a repetition answers the repetition: the first packet was lost, and
        the time says nothing about the other workers.
        """
        lost = self._probes and self._patience.is_trip(now - flight.sent)
        if self._moving_since is None:
            self._moving_since = now
            if not lost:
                self._waiting_timeout.sample(max(0.0, now - flight.first_sent))
        elif not lost and now > self._heard_at:
            self._moving_timeout.sample(now - self._heard_at)
        return self._moving_since

    def _learn(self, flight: InFlightRequest, moving_since: float, now: float) -> int:
        """From each answer; which of all requests it answers, by their order of sending."""
        if flight.attempts == 1:
            if flight.sent <= now:  # else others have closed the block without it
                self._answer_timeout.sample(now - max(flight.first_sent, moving_since))
                self._patience.answer(now - flight.sent, again=False)
            return flight.order
        self._patience.answer(now - flight.sent, again=True)  # Karn: nobody knows which attempt was answered
        return self._answered_order(flight, now)

    def due(self, now: float) -> list[int]:
        """The requests to repeat: what was overtaken long ago; in silence the oldest, four times as many each, where
        gradients come in pieces one."""
        due = [request for request, flight in self.by_request.items() if flight.deadline <= now]
        later = (flight.deadline for flight in self.by_request.values() if flight.deadline > now)
        self._soonest = min(later, default=math.inf)
        if self.probe_at <= now:
            oldest = [request for request, flight in self.by_request.items() if flight.sent <= now]
            probes = oldest[: 1 if self.in_pieces else 4 ** min(self._probes, 5)]
            self.probed.update(probes)
            due += [request for request in probes if request not in due]
            self._probes += bool(oldest)
            self.silent_from = self._since(now)
        return due

    def mark_sent_again(self, request: int, now: float) -> InFlightRequest:
        """A request is sent once more."""
        flight = self.by_request[request] = self.by_request.pop(request)
        self._order += 1
        flight.order, flight.sent, flight.deadline = self._order, now, math.inf
        flight.asked_peers = flight.doubtful = False
        flight.attempts += 1
        return flight

    def _answered_order(self, flight: InFlightRequest, now: float) -> int:
        """Of the attempt that was answered, as far as one can know (RFC 8985, 6.2; in doubt the first, RFC 3522).

        A request that was repeated while it waited in a queue seems to have overtaken everything in that queue.
        """
        if now - flight.sent < self._answer_timeout.soon_s:
            return flight.first_order
        if self._doubts:
            self._doubts -= 1
            return flight.first_order
        return flight.order

    def _level(self, flight: InFlightRequest) -> int:
        """What all workers send in one order; what comes after all others, as the summary block, is its own."""
        block = flight.header.block
        if self.level is None:
            return 0
        return self.level[block] if block < len(self.level) else -(2**63)

    def _miss(self, flight: InFlightRequest, now: float, by: str) -> None:
        flight.doubtful = by == "probe" and (flight.doubtful or flight.deadline == math.inf)
        flight.deadline = min(flight.deadline, self._patience_ends(flight, now, by))

    def _overtaker(self, flight: InFlightRequest, newest: Mapping[int, int]) -> str | None:
        """What was answered and was sent later: of its level, or only of lower ones, or nothing."""
        mine = self._level(flight)
        if flight.order <= newest.get(mine, 0):
            return "same"
        return "lower" if any(level < mine and flight.order <= order for level, order in newest.items()) else None

    def _patience_ends(self, flight: InFlightRequest, now: float, by: str) -> float:
        """When an overtaken request is sent again: soon for the first time, then not before its answer can be here.

        What only a lower level has overtaken others may still compute; after a refusal they may still encode it anew.
        That a probe was in vain is told within a trip.
        """
        if self.disordered or by == "lower":
            return max(now, flight.sent) + self._answer_timeout.rto_s
        soon = max(now, flight.sent) + (self._patience.trip_s if by == "probe" else self._patience.window_s)
        return soon if flight.attempts == 1 else max(soon, flight.sent + self._patience.trip_s)

    def _since(self, now: float) -> float:
        """From when on an answer can be missed: now, or once the first request leaves where none has left yet."""
        if self._all_left_at <= now:
            return now
        return max(now, self._first_leaves(now))

    def _first_leaves(self, default: float) -> float:
        """When the first of all requests leaves, or has left."""
        return next((flight.sent for flight in self.by_request.values()), default)

    def _silence_s(self) -> float:
        """How long silence may last.

        Doubles each time while k workers are waited for.  Once the iteration moves silence is loss: the oldest request
        is repeated early, as RFC 8985 does at the tail, and the wait grows by its own length only.
        """
        if self._moving_since is not None:
            moving = self._moving_timeout
            return min(self._longest_s, moving.rto_s * self._probes if self._probes else moving.usual_s)
        usual_s = self._waiting_timeout.rto_s
        return float(min(self._longest_s, usual_s * 2 ** min(self._probes, 10)) if self._probes else usual_s)

    @property
    def _longest_s(self) -> float:
        """The longest silence.

        While others are waited for estimates grow, and with them everyone's wait for what is lost; but a few requests
        may be repeated often: the first time after PATIENT trips for each that is in flight, then after one, two and so
        on.
        """
        trips = len(self.by_request) * (self._probes or PATIENT)
        return min(RTO_MAX_S, trips * self._patience.trip_s)
