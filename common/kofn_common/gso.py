"""GSO (generic segmentation offload): whether coalesced datagrams pass this machine's kernel as one packet."""

import os

OLDEST = (6, 2)
"""The first Linux whose packet sockets, which the switch uses, know coalesced UDP datagrams."""


def gso_works() -> bool:
    """Return whether packet sockets of this kernel take and send coalesced UDP datagrams."""
    release = os.uname().release.split(".")
    try:
        return (int(release[0]), int(release[1])) >= OLDEST
    except (IndexError, ValueError):
        return False
