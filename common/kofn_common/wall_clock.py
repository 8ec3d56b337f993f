"""The time of day that all processes of a run agree on.

In a laboratory of several machines it is the time of day of the machine on which `kofn run` runs: the other machines'
processes know by how much their own machine is ahead.
"""

import os
import time

AHEAD_S = "KOFN_CLOCK_AHEAD_S"
"""The environment variable with the seconds by which this machine's clock is ahead; missing: 0."""

_AHEAD_S = float(os.environ.get(AHEAD_S, "0"))


def now() -> float:
    """Return the seconds since 1970."""
    return time.time() - _AHEAD_S
