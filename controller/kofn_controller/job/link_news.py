"""Keeps what the workers were told about their links, and returns what has changed."""

from collections.abc import Iterator

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.followers import peers_of


class LinkNews:
    """The links of a job's workers, as the workers know them."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[bool, int]] = {}

    def changes(self, control_loop: ControlLoop) -> Iterator[tuple[int, pb.Link]]:
        """Yield ranks and what these workers must be told, and note that they were told.

        A delay that has changed is no news, because a worker with a slow link measures it.
        """
        links = control_loop.links
        peers = peers_of(links.slow, control_loop.follows, control_loop.live, control_loop.k)
        for rank, peer in enumerate(peers.tolist()):
            known = bool(links.slow[rank]), peer
            if control_loop.live[rank] and self._told.get(rank, (False, -1)) != known:
                self._told[rank] = known
                delay_s = float(links.delays_s[rank]) if links.slow[rank] else 0.0
                link = pb.Link(delay_s=delay_s, usual_s=links.usual_s, fence_s=links.fence_s)
                if peer >= 0:
                    link.peer = peer
                yield rank, link

    @property
    def followers(self) -> frozenset[int]:
        """The ranks of the workers that get results from a peer."""
        return frozenset(rank for rank, (_, peer) in self._told.items() if peer >= 0)

    def forget(self, rank: int) -> None:
        """Note that another process of a worker has attached, which knows nothing of its link."""
        self._told.pop(rank, None)
