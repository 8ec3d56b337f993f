"""Decides which workers get the results of the sums from their peers, over the management network.

If k is below n, the sums go on without a worker with a slow link, and their results would fill this link: the worker
would get each result late, and the answers to its own packets behind all results. Pure functions.
"""

import numpy as np
from numpy.typing import NDArray

from kofn_controller.estimate.measurements import BoolArray


def peers_of(slow: BoolArray, follows: BoolArray, live: BoolArray, k: int) -> NDArray[np.int64]:
    """Return the rank (n,) of the peer from which each worker gets results; -1: the worker gets them from the switch.

    Workers with a `slow` link that can follow get results from the workers with fast links, in turn, if the sums do not
    wait for all workers.
    """
    peers = np.full(len(slow), -1, np.int64)
    follow, sources = np.flatnonzero(live & slow & follows), np.flatnonzero(live & ~slow)
    if k < live.sum() and len(sources):
        peers[follow] = sources[np.arange(len(follow)) % len(sources)]
    return peers
