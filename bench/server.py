"""How many packets a second the parameter server takes, on one core and over loopback.

    python -m bench.server
    python -m bench.server --workers 8 --words 32 --rounds 20 --json

Contributions of all workers to a batch of blocks wait in the server's socket; timed is the processor time that it takes
to receive them, to add them and to send every worker its results. `in` and `out`: packets/s; `sums`: 32-bit values that
are added, in Mbit/s; `of bare`: packets in, against a loop that receives the same packets and sends the same answers
without looking at them. Medians over rounds, in which both take turns.
"""

import argparse
import contextlib
import socket
import statistics
import time
from collections.abc import Callable

import numpy as np

from bench.tables import Row, make_parser, say, show, whole
from kofn_common.wire import packet as wire
from kofn_common.wire.packet import WORD_LANES, Kind, KofnHeader
from kofn_common.wire.sizes import WORDS_MAX, WORKERS_MAX
from kofn_host.collectives.parameter_server import ParameterServer
from kofn_host.kernels.lanes import pack
from kofn_host.protocol.slots import NativeSlots
from kofn_host.transport.udp import udp_socket

OWN, SENDER, PORT = "127.0.93.1", "127.0.93.2", 19300
BATCH = 64
"""Blocks: as many as are in flight by default."""


class Bench:
    """A server, and one socket that stands for all its workers; what it hears is thrown away."""

    def __init__(self, workers: int, words: int) -> None:
        self._workers, self._words = workers, words
        self._opened, self._sender = udp_socket(OWN, PORT), udp_socket(SENDER, PORT)
        self._opened.setblocking(False)
        self._sender.connect((OWN, PORT))
        self._rules = NativeSlots.open(workers=workers, k=workers, slots=2 * BATCH)
        self._server = ParameterServer(self._opened, self._rules, 1, [SENDER] * workers)
        self._values = pack(np.arange(words * WORD_LANES, dtype=np.int32), 32)
        self._iteration = 0

    def close(self) -> None:
        self._opened.close()
        self._sender.close()

    def round(self) -> tuple[float, float]:
        """One batch each: seconds of the server, and of the bare loop."""
        return self._timed(self._serve), self._timed(self._bare)

    def _serve(self) -> None:
        while self._server.receive():
            pass

    def _timed(self, serve: Callable[[], None]) -> float:
        self._iteration += 1
        for block in range(BATCH):
            for worker in range(self._workers):
                header = KofnHeader(
                    job=1, worker=worker, words=self._words, iteration=self._iteration, block=block, slot=block
                )
                self._sender.send(wire.encode(header, self._values))
        begin = time.process_time()
        with contextlib.suppress(BlockingIOError):
            serve()
        taken_s = time.process_time() - begin
        with contextlib.suppress(BlockingIOError):
            while True:
                self._sender.recv(1, socket.MSG_DONTWAIT)
        return taken_s

    def _bare(self) -> None:
        """Send and receive as many packets without reading them."""
        buffer = bytearray(wire.PACKET_BYTES_MAX)
        answer = wire.encode(KofnHeader(kind=Kind.RESULT, words=self._words), self._values)
        while True:
            self._opened.recvfrom_into(buffer)
            self._opened.sendto(answer, (SENDER, PORT))


def measured(workers: int, words: int, rounds: int) -> Row:
    """A row of the table."""
    bench = Bench(workers, words)
    try:
        bench.round()
        taken = [bench.round() for _ in range(rounds)]
        served = f"{bench._server.counts.received} of {(rounds + 1) * BATCH * workers} packets came"
    finally:
        bench.close()
    say(f"{workers} workers, {words} words: {served}")
    packets = BATCH * workers
    rate = packets / statistics.median(server for server, _ in taken)
    return {
        "workers": workers,
        "words": words,
        "in": f"{rate:,.0f}",
        "out": f"{rate:,.0f}",
        "sums": f"{rate * words * WORD_LANES * 32 / 1e6:,.0f} Mbit/s",
        "of bare": statistics.median(bare / server for server, bare in taken),
    }


def main() -> None:
    """Measure and print the table."""
    options = _options()
    rows = [measured(workers, words, options.rounds) for words in options.words for workers in options.workers]
    show({"parameter server, one core, loopback": rows}, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=whole(1, WORKERS_MAX), nargs="+", default=[4, 8])
    parser.add_argument(
        "--words", type=whole(1, WORDS_MAX), nargs="+", default=[4, 32], help="256-byte words in a packet"
    )
    parser.add_argument("--rounds", type=whole(), default=50)
    return parser.parse_args()


if __name__ == "__main__":
    main()
