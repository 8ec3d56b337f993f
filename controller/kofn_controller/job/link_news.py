"""Yields the news of the links for the workers: each worker gets each piece of news once."""

from collections.abc import Iterator

import numpy as np

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.followers import peers_of


class LinkNews:
    """The links of a job's workers, as the workers know them."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[bool, int] | None] = {}  # by rank: slow, and the peer; None: not known

    def changes(self, control_loop: ControlLoop) -> Iterator[tuple[int, pb.Link]]:
        """Yield the ranks of live workers whose links have news, with the news; each piece of news is yielded once.

        A delay that has changed is no news, because a worker with a slow link measures it.
        """
        links = control_loop.links
        peers = peers_of(links.slow, control_loop.follows, control_loop.live, control_loop.k)
        for rank in np.flatnonzero(control_loop.live).tolist():
            now = bool(links.slow[rank]), int(peers[rank])
            if self._told.get(rank, (False, -1)) != now:
                self._told[rank] = now
                delay_s = float(links.delays_s[rank]) if links.slow[rank] else 0.0
                link = pb.Link(delay_s=delay_s, usual_s=links.usual_s, fence_s=links.fence_s)
                if peers[rank] >= 0:
                    link.peer = peers[rank]
                yield rank, link

    @property
    def followers(self) -> frozenset[int]:
        """The ranks of the workers that get results from a peer."""
        return frozenset(rank for rank, told in self._told.items() if told and told[1] >= 0)

    def attached(self, rank: int, *, new: bool) -> None:
        """Note that a worker has attached: a new process, which knows nothing of its link, or one that an earlier
        controller may have told something."""
        if new:
            self._told.pop(rank, None)
        else:
            self._told[rank] = None
