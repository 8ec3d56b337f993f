"""GSO (generic segmentation offload): whether and how large coalesced datagrams pass this machine's kernel."""

import os

OLDEST = (6, 2)
"""The first Linux whose packet sockets, which the switch uses, know coalesced UDP datagrams."""

COALESCED_BYTES = 65_000
"""The size of the largest coalesced packet, a little less than IPv4's limit."""

BUCKET_S, BUCKET_BYTES = 2e-3, 36_056
"""A shaped link's token bucket, as burst_bytes() of mininet/interfaces.py makes it: the bytes of BUCKET_S at the link's
rate, at least BUCKET_BYTES."""


def coalesced_bytes(mbps: float | None) -> int:
    """Return the most bytes of coalesced frames for a link of this rate; None or 0: not shaped.

    The kernel passes a coalesced packet as a whole only if the link's bucket can hold its frames; `tc` rounds the
    bucket's size.
    """
    if not mbps:
        return COALESCED_BYTES
    return min(COALESCED_BYTES, int(0.99 * max(BUCKET_BYTES, mbps * 1e6 / 8 * BUCKET_S)))


def gso_works() -> bool:
    """Return whether packet sockets of this kernel take and send coalesced UDP datagrams."""
    release = os.uname().release.split(".")
    try:
        return (int(release[0]), int(release[1])) >= OLDEST
    except (IndexError, ValueError):
        return False
