"""Requests without a result, and when each of them is retransmitted.

Three signs tell of a loss: a request that was sent later has been answered (then soon, with patience for reordered
packets); no answer at all has come for longer than usual (then the oldest requests are repeated, one at first); and a
long wait before an iteration's first answer, which needs k workers.

A merged contribution, which does not count among the k, is sent once: no block waits for it.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from kofn_common.wire.packet import Flag, KofnHeader
from tests.host.protocol.specification.timeout import RTO_MAX_S, ReorderingWindow, Timeout


@dataclass(slots=True)
class InFlightRequest:
    """One of this worker's requests without a result."""

    header: KofnHeader
    values: bytes
    order: int  # in the order of sending, among all requests; for an expected one that of its first sending
    first_order: int  # of its first sending
    first_sent: float
    sent: float  # in the future while it waits for its turn to leave
    deadline: float = math.inf  # finite once a later request has been answered
    attempts: int = 1
    asked_peers: bool = False
    expected: bool = False  # another worker sends the block; this request is sent only when the block is overdue


PATIENT = 4


class InFlight:
    """The requests of the current iteration in flight, by request (protocol.instructions); times are seconds of any
    clock.
    """

    def __init__(self, rto_s: float) -> None:
        self.by_request: dict[int, InFlightRequest] = {}
        """The requests whose answers the iteration awaits, in the order of sending."""
        self.merged: dict[int, InFlightRequest] = {}
        """Merged contributions."""
        self.silent_from = 0.0
        """Start of the present silence, in which nothing was answered."""
        self._waiting_timeout = Timeout(rto_s)  # until an iteration's first answer, which needs k workers
        self._moving_timeout = Timeout(rto_s, spare=1.0)  # from one answer to the next: the network alone
        self._answer_timeout = Timeout(rto_s)  # from a request to its answer
        self._patience = ReorderingWindow()
        self._soonest = math.inf  # no deadline is earlier
        self._order = 0
        self._probes = 0  # since the last answer
        self.disordered = False
        """A slot has refused a request of this iteration, so workers no longer send in one order."""
        self.in_pieces = (
            False  # gradients of this iteration come in pieces: in a silence others may compute the next ones
        )
        self.level: list[int] | None = (
            None  # by block of such a gradient: blocks of one level leave in the same order everywhere
        )
        self.owned = False
        """The levels are owners, whose pace says nothing about each other's."""
        self._heard_at = 0.0  # when the last answer came, or a request was sent while none was in flight
        self._moving_since: float | None = None  # when the first block of this iteration closed
        self._all_left_at = 0.0  # when the last request leaves that did not leave at once

    @property
    def deadline(self) -> float | None:
        """When a request is due; None while nothing is in flight."""
        if not self.by_request:
            return None
        return min(self.probe_at, self._soonest)

    @property
    def probe_at(self) -> float:
        """When a request is retransmitted because nothing is answered."""
        return self.silent_from + self._silence_s()

    def begin(self, moving_since: float | None) -> None:
        """Begin an iteration; `moving_since`: since when its blocks close, if they already do."""
        self._moving_since = moving_since
        self.disordered = self.in_pieces = self.owned = False
        self.level = None

    def launch(self, request: int, header: KofnHeader, values: bytes, now: float, *, expected: bool = False) -> None:
        self.remove(request)
        if not self.by_request and header.count:
            self.heard(now)
        self._order = order = self._order + 1
        flights = self.by_request if header.count else self.merged
        flights[request] = InFlightRequest(header, values, order, order, now, now, expected=expected)

    def find(self, request: int) -> InFlightRequest | None:
        return self.by_request.get(request) or self.merged.get(request)

    def remove(self, request: int) -> None:
        self.by_request.pop(request, None)
        self.merged.pop(request, None)

    def clear(self) -> None:
        self.by_request.clear()
        self.merged.clear()

    def leaves(self, flight: InFlightRequest, at: float) -> None:
        """Note that a request launched or repeated just now leaves later, after all earlier ones."""
        flight.sent = at
        if flight.attempts == 1:
            flight.first_sent = at
        if not flight.header.count:
            return
        self._all_left_at = at
        if self._first_leaves(at) >= at:
            self.silent_from = at

    def heard(self, now: float) -> None:
        """Note that the switch has answered, or that nothing was asked before."""
        self._probes = 0
        self._heard_at = now
        self.silent_from = self._since(now)

    def answered(self, requests: Sequence[int], now: float, to_again: Container[int] = ()) -> None:
        """Learn from answers that arrived together: how long answers take, and which requests are now overdue.

        k workers had sent these blocks and all earlier ones. So requests sent before them will be answered soon, or a
        packet was lost (RFC 8985). `to_again`: requests whose answers came to a retransmitted packet of this or another
        worker.
        """
        flights = {request: self.by_request.pop(request) for request in requests}
        moving_since = self._learn_wait(flights[requests[0]], now, lost=requests[0] in to_again)
        newest: dict[int, int] = {}
        for request, flight in flights.items():
            level, order = self._level(flight), self._learn(flight, moving_since, now, again=request in to_again)
            newest[level] = max(newest.get(level, 0), order)
        last = max(newest.values())
        self.heard(now)
        for other in self.by_request.values():
            if other.order > last:
                return
            if by := self._overtaker(other, newest):
                other.deadline = min(other.deadline, self._patience_ends(other, now, by))
            self._soonest = min(self._soonest, other.deadline)

    def _learn_wait(self, flight: InFlightRequest, now: float, *, lost: bool) -> float:
        """Learn the wait for the first of answers that arrived together; return since when blocks close.

        If a packet was lost, the wait says nothing about the other workers.
        """
        if self._moving_since is None:
            self._moving_since = now
            if not lost:
                self._waiting_timeout.sample(max(0.0, now - flight.first_sent))
        elif not lost and now > self._heard_at:
            self._moving_timeout.sample(now - self._heard_at)
        return self._moving_since

    def _learn(self, flight: InFlightRequest, moving_since: float, now: float, *, again: bool) -> int:
        """Learn from one answer, and return the order of sending of the request that it answers (RFC 3522).

        That is the first attempt, unless the answer came to a repetition. The repetition may be another worker's, so an
        answer that is sooner than possible is not this worker's (RFC 8985, 6.2).
        """
        if flight.expected:
            return flight.order
        if flight.attempts == 1:
            if flight.sent <= now:  # else others have closed the block without it
                self._answer_timeout.sample(now - max(flight.first_sent, moving_since))
                self._patience.answer(now - flight.sent)
            return flight.order
        self._patience.answer_again(now - flight.sent, caused=again, rto_s=self._answer_timeout.rto_s)
        soon = now - flight.sent < self._answer_timeout.soon_s
        return flight.order if again and not soon else flight.first_order

    def due(self, now: float) -> list[int]:
        """Return the requests to repeat: those overtaken long ago; in silence the oldest, twice as many each time, but
        one if gradients come in pieces.
        """
        due = [request for request, flight in self.by_request.items() if flight.deadline <= now]
        later = (flight.deadline for flight in self.by_request.values() if flight.deadline > now)
        self._soonest = min(later, default=math.inf)
        if self.probe_at <= now:
            oldest = [request for request, flight in self.by_request.items() if flight.sent <= now]
            probes = oldest[: 1 if self.in_pieces else 2 ** min(self._probes, 10)]
            due += [request for request in probes if request not in due]
            self._probes += bool(oldest)
            self.silent_from = self._since(now)
        return due

    def mark_sent_again(self, request: int, now: float) -> InFlightRequest:
        """Note that a request is retransmitted."""
        flight = self.by_request[request]
        if not flight.expected:
            self.by_request[request] = self.by_request.pop(request)
            self._order = flight.order = self._order + 1
        flight.header = flight.header._replace(flags=flight.header.flags | Flag.AGAIN)
        flight.sent, flight.deadline, flight.asked_peers = now, math.inf, False
        flight.attempts += 1
        return flight

    def _level(self, flight: InFlightRequest) -> int:
        """Return the request's level, within which all workers send in one order; the summary block, sent last, has its
        own.
        """
        block = flight.header.block
        if self.level is None:
            return 0
        return self.level[block] if block < len(self.level) else -(2**63)

    def _overtaker(self, flight: InFlightRequest, newest: Mapping[int, int]) -> str | None:
        """Return which later request was answered: one of the "same" level, only a "lower" one, or None."""
        mine = self._level(flight)
        if flight.order <= newest.get(mine, 0):
            return "same"
        if self.owned:
            return None
        return "lower" if any(level < mine and flight.order <= order for level, order in newest.items()) else None

    def _patience_ends(self, flight: InFlightRequest, now: float, by: str) -> float:
        """Return when an overtaken request is retransmitted: soon the first time, then not before its answer can
        arrive.

        If the owner's later blocks say nothing about it, that is when it usually arrives. Others may still compute a
        block that only a lower level has overtaken; after a refusal they may still encode it again.
        """
        if self.disordered or by == "lower":
            return max(now, flight.sent) + self._answer_timeout.rto_s
        soon = max(now, flight.sent) + self._patience.window_s
        trip_s = self._answer_timeout.rto_s if flight.expected else self._patience.trip_s
        return soon if flight.attempts == 1 else max(soon, flight.sent + trip_s)

    def _since(self, now: float) -> float:
        """Return from when an answer can be missed: now, or when the first request leaves if none has left."""
        if self._all_left_at <= now:
            return now
        return max(now, self._first_leaves(now))

    def _first_leaves(self, default: float) -> float:
        """Return when the first of all requests leaves, or has left."""
        return next((flight.sent for flight in self.by_request.values()), default)

    def _silence_s(self) -> float:
        """Return how long a silence may last.

        It doubles each time while k workers are awaited. Once blocks close, silence means loss: the oldest request is
        repeated early, like the tail in RFC 8985, and the wait grows only by its own length.
        """
        if self._moving_since is not None:
            moving = self._moving_timeout
            return min(self._longest_s, moving.rto_s * self._probes if self._probes else moving.usual_s)
        usual_s = self._waiting_timeout.rto_s
        return float(min(self._longest_s, usual_s * 2 ** min(self._probes, 10)) if self._probes else usual_s)

    @property
    def _longest_s(self) -> float:
        """Return the longest silence.

        Estimates grow while others are awaited, and with them the wait for lost packets. But few requests may be
        repeated often: first after PATIENT trips for each in flight, then after one, two and so on.
        """
        trips = len(self.by_request) * (self._probes or PATIENT)
        return min(RTO_MAX_S, trips * self._patience.trip_s)
