"""`python -m kofn_host.collectives.parameter_server`: a parameter server, that is, a switch on a host.

The server answers packets by the switch's rules (protocol.slots, docs/reference/protocol.md), so workers use a switch
and a server alike.  The server sends a result to one worker after another through the server's link; a switch
multicasts the result instead. (Source: the rate-adaptive compression document's architecture: workers, a switch that
forwards, server.)
"""

import logging
import os
import select
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import click

from kofn_common import wall_clock
from kofn_common.config.k_bounds import bound_k
from kofn_common.wire import packet as wire
from kofn_common.wire.errors import ChecksumError, WireError
from kofn_common.wire.packet import EVERYONE, Kind, KofnHeader, Lanes
from kofn_common.wire.sizes import JOB_MAX, PARTS, WEIGHT_MAX
from kofn_host.errors import HostError
from kofn_host.protocol.slots import Answer, NativeSlots
from kofn_host.transport.datagrams import BATCH, Datagrams
from kofn_host.transport.udp import may_join, udp_socket

log = logging.getLogger(__name__)


GENERATION_AHEAD_S = 86_400
"""A generation's number is the Unix time in seconds at which the generation begins, or little more. A number that is
further ahead than GENERATION_AHEAD_S comes from a damaged packet."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counters of packets; `dropped` by reason, in the switch's words."""

    received: int = 0
    sent: int = 0
    send_failures: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        done = f"{self.received} packets in, {self.sent} out, {self.send_failures} could not be sent"
        return f"{done}; dropped: {dropped or 'none'}"


class ParameterServer:
    """A server for job `job`, whose workers have these addresses, by rank, and use the socket's port.

    `switch_segments`: as in udp.may_join.

    The server adopts each later generation that a worker's packet has.  It may do so because the controller lets
    workers send in a new generation only after all workers have left the old generation.
    """

    def __init__(
        self,
        opened: socket.socket,
        rules: NativeSlots,
        job: int,
        addresses: Sequence[str],
        *,
        switch_segments: bool = False,
    ) -> None:
        self.counts = Counts()
        self._socket, self._rules, self._job = opened, rules, job
        self._port = opened.getsockname()[1]
        self._places = [place_of(address) for address in addresses]
        self._datagrams = Datagrams(opened, senders=True, joins=may_join(opened, switch_segments=switch_segments))

    def serve(self) -> None:
        """Serve until a signal handler raises."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            poll.poll()
            while self.receive() == BATCH:  # more may wait, although the socket is not readable
                pass

    def receive(self) -> int:
        """Handle at most a batch of waiting datagrams; return their number."""
        packets, senders, errors, sizes = self._datagrams.receive()
        self.counts.received += len(sizes)
        for error in errors:
            self._refuse(error)
        answers = list[Answer]()
        for (header, values), sender in zip(packets, senders, strict=True):
            answers += self._answers(header, values, sender)
        if answers:
            self._send(answers)
        return len(sizes)

    def _send(self, answers: list[Answer]) -> None:
        """Send the answers to their workers, each worker's in their order."""
        if self._datagrams.joins:
            answers.sort(key=itemgetter(0))  # the answers to one worker can be coalesced
        packets = [(header, values) for _, header, values in answers]
        self.counts.sent += len(packets)  # counted first: a worker that has its answer may end this process
        left, error = self._datagrams.send(packets, [self._places[rank] for rank, _, _ in answers], self._port)
        for (rank, _, _), went in zip(answers, left, strict=True):
            if not went:
                self._not_sent(rank, OSError(error, os.strerror(error)))

    def _not_sent(self, rank: int, error: OSError) -> None:
        """Count an answer that could not be sent: it is lost, and the worker retransmits."""
        self.counts.sent -= 1
        self.counts.send_failures += 1
        if self.counts.send_failures == 1:
            place = f"{address_of(self._places[rank])}:{self._port}"
            log.warning("worker %d at %s: %s (further ones are only counted)", rank, place, error)

    def _refuse(self, error: WireError) -> None:
        self.counts.dropped["BAD_CHECKSUM" if isinstance(error, ChecksumError) else "MALFORMED"] += 1

    def _answers(self, header: KofnHeader, values: bytes, sender: int) -> list[Answer]:
        """Return the answers to a packet from this address."""
        reason = self._unwelcome(header, sender)
        if reason is None:
            return self._rules.handle(header, values)
        self.counts.dropped[reason] += 1
        return []

    def _unwelcome(self, header: KofnHeader, sender: int) -> str | None:  # noqa: PLR0911  # one return for each reason
        """Return why the packet is dropped, by the switch's admission rules; None if it is admitted."""
        job, ranks = self._job, len(self._places)
        if header.job != job:
            return "UNKNOWN_JOB"
        if header.kind > Kind.PULL:
            return "BAD_KIND"
        if not header.words:
            return "BAD_LENGTH"
        if not header.iteration:
            return "BAD_ITERATION"
        if header.part >= PARTS:
            return "BAD_PART"
        if header.worker >= ranks or self._places[header.worker] != sender:
            return "WRONG_PORT"
        pulls = header.kind == Kind.PULL
        if 0 < header.k < self._rules.k or (
            header.count != 1 if pulls else header.count > 1 or not 1 <= header.weight <= WEIGHT_MAX
        ):
            return "BAD_COUNT"
        if header.generation > self._rules.generation and header.generation <= wall_clock.now() + GENERATION_AHEAD_S:
            self._rules.generation = header.generation
        if header.generation != self._rules.generation:
            return "OLD_GENERATION"
        if header.lanes > Lanes.VOTES:
            return "UNKNOWN_LANES"
        return "UNKNOWN_RECIPIENT" if ranks <= header.recipient != EVERYONE else None


def place_of(address: str) -> int:
    """Return an IPv4 address as a number; OSError for other text."""
    return int.from_bytes(socket.inet_aton(address))


def address_of(place: int) -> str:
    return socket.inet_ntoa(place.to_bytes(4))


@click.command(
    epilog="Example: python -m kofn_host.collectives.parameter_server --address 10.0.0.9 "
    "--worker 10.0.0.1 --worker 10.0.0.2"
)
@click.option("--address", required=True, help="The server's own address on the data network.")
@click.option("--worker", "workers", multiple=True, required=True, help="A worker's address; once per worker, by rank.")
@click.option("--k", type=click.IntRange(min=1), help="Number of workers that complete a block.  [default: all]")
@click.option("--job", type=click.IntRange(1, JOB_MAX), default=1, show_default=True)
@click.option("--slots", type=click.IntRange(min=2), default=1024, show_default=True, help="As job.slots.")
@click.option("--port", type=click.IntRange(1, 65535), default=wire.FORWARDED_PORT, show_default=True)
@click.option("--switch-segments", is_flag=True, help="The switch segments coalesced packets itself.")
def main(
    address: str, workers: tuple[str, ...], k: int | None, job: int, slots: int, port: int, *, switch_segments: bool
) -> None:
    """Run a parameter server, which sums like the switch, until SIGTERM.

    It prints a line when it serves, and its counters at the end.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    k = len(workers) if k is None else k
    try:
        if k != bound_k(k, len(workers)):
            raise HostError(f"--k must be 1 to {len(workers)}, the number of workers, got {k}")
        rules = NativeSlots.open(workers=len(workers), k=k, slots=slots)
        opened = udp_socket(address, port)
        server = ParameterServer(opened, rules, job, workers, switch_segments=switch_segments)
    except (HostError, OSError) as error:
        sys.exit(f"kofn server: {address}:{port}: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"serving job {job} at {address}:{port}: {k} of {len(workers)} workers complete a block", flush=True)
    with opened:
        try:
            server.serve()
        except KeyboardInterrupt:
            pass
        finally:
            print(server.counts, flush=True)


if __name__ == "__main__":
    main()
