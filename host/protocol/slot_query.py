"""Who is in a block that does not close: what a worker asks the switch when it has waited for long.

A PULL with a number of words that the block never has is FORMAT_MISMATCH as long as the slot has the block, open or
closed, and a refusal tells who is in it.
"""

import ctypes

from kofn.host.wire.packet import PARTS, RANKS, members_of


class _Query(ctypes.Structure):
    """The beginning of struct slot_query of core.h."""

    _fields_ = (
        ("asked", ctypes.c_int32),
        ("answered", ctypes.c_int32),
        ("block", ctypes.c_int64),
        ("members", ctypes.c_uint64 * PARTS),
    )


class SlotQuery:
    """The latest question of one worker, and its answer: the core's, which are at this address."""

    def __init__(self, address: int) -> None:
        self._query = _Query.from_address(address)

    def describe(self, workers: int) -> str:
        """What is known by now of the slot, in a job of so many workers."""
        query = self._query
        if not query.asked:
            return "nobody was asked why"
        if not query.answered:
            return f"nobody answers for block {query.block}"
        bitmap = sum(ranks << part * RANKS for part, ranks in enumerate(query.members))
        missing = sorted(set(range(workers)) - set(members_of(bitmap)))
        ranks = " and ".join(map(str, missing))
        who = f"worker{'s' * (len(missing) > 1)} {ranks} missing" if missing else "all workers there"
        return f"in block {query.block} the switch has {who}"
