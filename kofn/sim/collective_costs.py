"""The CPU time of a parameter server and of a ring's steps on this machine, measured with the real functions."""

import socket
import threading
import time
from contextlib import ExitStack

import numpy as np

from kofn_common.wire.packet import WORD_BYTES, KofnHeader
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.collectives.parameter_server import ParameterServer
from kofn_host.collectives.passage import Passage, RingLink, Route
from kofn_host.protocol.slots import NativeSlots
from kofn_host.stopwatch import Stopwatch
from kofn_host.training import JobCoding
from kofn_host.transport.datagrams import Datagrams
from kofn_host.transport.udp import udp_socket

REPEATS = 40
"""The number of times that a step is timed; the least time counts."""

PAYLOAD_BYTES = 8948
"""TCP's bytes in a packet of 9,000 bytes, the links' MTU."""

STEPS = 2
"""The steps of a ring of two workers."""

LIMIT_S = 10.0
"""The longest wait of a ring's worker for the other worker."""

WORKER, SERVER = "127.0.0.1", "127.0.0.2"

TOGETHER = 8
"""The number of packets that are sent or received at a time."""


def server_s(coding: JobCoding) -> float:
    """Return the seconds of CPU time that a server takes for a contribution and its answer, in a job of one worker.

    A server handles packet after packet, so the time needs no correction for cold caches.
    """
    lanes = coding.planner.first().lanes
    words = coding.layout.words_of(0, lanes)
    values = bytes(words * WORD_BYTES)
    with udp_socket(SERVER, 0) as serving, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as working:
        place = serving.getsockname()
        working.bind((WORKER, place[1]))
        working.connect(place)
        worker = Datagrams(working, joins=True)
        rules = NativeSlots.open(workers=1, k=1, slots=2 * TOGETHER)
        server = ParameterServer(serving, rules, 1, [WORKER], switch_segments=True)
        least_s = float("inf")
        for iteration in range(1, REPEATS + 1):
            header = KofnHeader(job=1, iteration=iteration, words=words, lanes=lanes, count=1, weight=WEIGHT_UNIT)
            worker.send([(header._replace(block=block, slot=block), values) for block in range(TOGETHER)])
            began_s = time.thread_time()
            server.receive()
            least_s = min(least_s, time.thread_time() - began_s)
            worker.receive()
        return least_s / TOGETHER


def ring_packet_s() -> float:
    """Return the seconds of CPU time that a worker of a ring takes to send, receive and add a packet.

    The function times a ring of two workers, in two threads, whose segments have one packet each. On a shaped link each
    packet comes alone, as it does here. Packets that follow each other find warm caches.
    """
    with ExitStack() as stack:
        ways = [[stack.enter_context(end) for end in _connection()] for _ in range(2)]
        turn, found = threading.Barrier(2), [float("inf")] * 2

        def work(rank: int) -> None:
            left = RingLink(socket=ways[1 - rank][1], rank=1 - rank)
            right = RingLink(socket=ways[rank][0], rank=1 - rank)
            flat = np.ones(2 * PAYLOAD_BYTES // 4, np.float32)
            for _ in range(REPEATS):
                turn.wait(LIMIT_S)
                began_s = time.thread_time()
                route = Route.around(flat, 2, rank, sums=True, shares=True, divisor=2)
                Passage(left, right, route, Stopwatch()).run(LIMIT_S)
                found[rank] = min(found[rank], time.thread_time() - began_s)

        other = threading.Thread(target=work, args=(1,))
        other.start()
        work(0)
        other.join()
        return found[0] / STEPS


def _connection() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection, as the ring's workers make it."""
    with socket.create_server((WORKER, 0)) as listening:
        ends = socket.create_connection(listening.getsockname()), listening.accept()[0]
    for end in ends:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ends
