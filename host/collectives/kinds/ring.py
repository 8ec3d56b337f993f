"""Ring all-reduce over TCP: what most frameworks do where no switch sums.

Every worker sends to the next one only.  The gradient is cut into a segment for each worker.  In the first half
(reduce-scatter) each segment goes round once and every worker adds its own values; in the second half (all-gather) the
finished means go round.  So a worker sends 2 (n - 1) / n of the gradient, whatever n is (Patarasuk and Yuan 2009).
Segments go in chunks, and a chunk leaves as soon as its values are added: sending, receiving and adding go on at once.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.collectives.collective import Form, Reduced
from kofn.host.collectives.frames import CONTROL_BYTES, FrameKind, flush_all
from kofn.host.collectives.job_collective import JobCollective
from kofn.host.collectives.neighbours import meet
from kofn.host.collectives.ring_call import RingCall
from kofn.host.errors import CollectiveError
from kofn.host.stopwatch import OnShare, Stopwatch

TIMEOUT_S = 60.0
FAREWELL_S = 0.5
"""For neighbours to take what is said of an error: they may be busy."""


class Ring(JobCollective):
    """A Collective of the workers at `addresses` (HOST or HOST:PORT), by rank; returns when the neighbours are there.

    `timeout_s`: of every wait, within a call since anything came or left the last time.
    """

    def __init__(
        self, rank: int, addresses: Sequence[str], *, job: int = 1, timeout_s: float = TIMEOUT_S, meet_s: float = 30.0
    ) -> None:
        self.rank, self.workers = rank, len(addresses)
        self._timeout_s = timeout_s
        self._call = 0
        self._failed = ""
        self._neighbours = meet(rank, addresses, job, meet_s) if self.workers > 1 else None

    def all_reduce(self, arrays: Sequence[Floats], *, on_share: OnShare | None = None) -> Reduced:
        if self._failed:
            raise CollectiveError(f"an earlier call has failed: {self._failed}")
        watch = Stopwatch()
        watch.turn("encode")
        self._call += 1
        try:
            form = Form.of(arrays)
            flat = np.zeros(max(form.elements, self.workers), np.float32)  # so every call needs everyone
            form.join(arrays, flat)
        except CollectiveError as error:
            raise self._fail(f"worker {self.rank}: {error}") from error
        before = self._traffic()
        watch.turn("wait")
        if self._neighbours is not None:
            self._run(RingCall(self._neighbours, self.rank, self.workers, self._call, form, flat, watch), on_share)
        watch.turn("decode")
        reduced = form.split(flat)
        if on_share is not None:
            on_share(1.0)
        sent, received = (now - then for now, then in zip(self._traffic(), before, strict=True))
        return Reduced(
            arrays=reduced, count=self.workers, times=watch.times(), sent_bytes=sent, received_bytes=received
        )

    def close(self) -> None:
        self._failed = self._failed or "it is closed"
        if self._neighbours is not None:
            self._neighbours.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, call: RingCall, on_share: OnShare | None) -> None:
        try:
            for share in call.run(self._timeout_s):
                if on_share is not None:
                    on_share(share)
        except CollectiveError as error:
            raise self._fail(str(error)) from error
        except BaseException as error:
            self._fail(f"worker {self.rank}: {type(error).__name__}: {error}")
            raise

    def _fail(self, reason: str) -> CollectiveError:
        """Tell both neighbours, who tell theirs; what to raise."""
        self._failed = reason
        if self._neighbours is not None:
            links = [link for link in self._neighbours.both if not link.gone]
            for link in links:
                link.outgoing.put(FrameKind.ABORT, reason.encode()[:CONTROL_BYTES])
            flush_all(links, FAREWELL_S)
        return CollectiveError(reason)

    def _traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        links = self._neighbours.both if self._neighbours is not None else ()
        return sum(link.outgoing.bytes for link in links), sum(link.incoming.bytes for link in links)


ring = Ring
