"""A worker's link to the switch: its pacing, how long packets wait in it, and results from a peer in place of the
switch."""

import time
from collections.abc import Iterable

from kofn_common.rpc import kofn_pb2
from kofn_host.agent.following import Follow, Follower
from kofn_host.agent.missed_results import MissedResults
from kofn_host.compression.encoder import Encoder
from kofn_host.engine.engine import EnginePort
from kofn_host.engine.link_pacing import LinkPacing, LinkReport
from kofn_host.engine.pacing_rate import PacingRate
from kofn_host.protocol.results import Result


class WorkerLink:
    """The link of one agent; `usual`: the pacing without a slow link; `follows`: whether a peer has this worker's
    results."""

    def __init__(
        self,
        protocol: EnginePort,
        encoder: Encoder,
        missed: MissedResults,
        usual: PacingRate | None,
        *,
        follows: bool,
    ) -> None:
        self._protocol, self._encoder, self._missed = protocol, encoder, missed
        self._pacing = LinkPacing(usual, encoder.coding.layout, protocol.set_pace)
        self.follows = follows
        """Whether this worker can get results from a peer."""

    def heard(self, link: kofn_pb2.Link, follow: Follow) -> None:
        """Take what the controller has found out about this link; `follow` yields a peer's results."""
        self._pacing.judge(link, self._encoder.plan, time.monotonic())
        self._missed.follow(link.peer if link.HasField("peer") else None, follow)

    def report(self) -> LinkReport | None:
        """Return how long a gradient's last packet waits in the link or, because the link is slow, in this host; None
        without a new measurement."""
        wait = self._protocol.probe.take(time.monotonic())
        if wait is None:
            return None
        engine = self._protocol.engine
        queued = engine is not None and engine.queued > 0
        return self._pacing.measured(wait, self._encoder.plan, queued=queued)

    def fresh(self, follower: Follower) -> Iterable[Result]:
        """Return the results of this worker that a follower has not got."""
        with self._protocol.held():
            return follower.fresh(self._protocol)
