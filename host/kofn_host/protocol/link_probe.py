"""The probe of a worker's link (link_probe.c): how long packets wait in the link."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class LinkWait(NamedTuple):
    """How long packets wait in a worker's link (core.h), in seconds."""

    wait_s: float
    """The wait of a gradient's last packet, or of the packets of earlier iterations alone."""
    sent_s: float
    """When the probe left."""
    before_all: bool
    """Whether the wait is that of the packets of earlier iterations: the probe has left before the iteration's."""


class LinkProbe:
    """The probe of one protocol core, whose functions `call` calls by name."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def begin(self) -> None:
        """Probe the link in each iteration from now on."""
        self._call("probe_link")

    def take(self, now: float) -> LinkWait | None:
        """Return how long packets wait in the link; None without a new measurement."""
        taken = np.zeros(3)
        if not self._call("take_link_wait", now, taken.ctypes.data):
            return None
        return LinkWait(float(taken[0]), float(taken[1]), bool(taken[2]))
