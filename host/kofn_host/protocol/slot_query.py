"""A worker's question to the switch about the members of a block that does not close.

The question is a PULL with a number of words that the block never has.  The switch answers FORMAT_MISMATCH with the
members, as long as the slot has the block, open or closed.
"""

from kofn_common.wire.packet import members_of
from kofn_common.wire.sizes import RACK_WORKERS_MAX
from kofn_host import structs


class SlotQuery:
    """A worker's latest question and its answer, in the core's memory at this address."""

    def __init__(self, address: int) -> None:
        self._query = structs.SlotQuery.from_address(address)

    def describe(self, workers: int) -> str:
        """Return a description of the answer, in a job of `workers` workers."""
        query = self._query
        if not query.asked:
            return "the switch was not asked why"
        if not query.answered:
            return f"no answer for block {query.block}"
        bitmap = sum(ranks << part * RACK_WORKERS_MAX for part, ranks in enumerate(query.members))
        missing = sorted(set(range(workers)) - set(members_of(bitmap)))
        ranks = " and ".join(map(str, missing))
        found = f"worker{'s' * (len(missing) > 1)} {ranks} missing" if missing else "all workers there"
        return f"in block {query.block} the switch has {found}"
