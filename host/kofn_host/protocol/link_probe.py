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
    passed_s: float
    """When the probe had passed the link."""
    sent_bytes: int
    """The bytes, with their frames, that this worker's pacer had put on the link by then, the probe included."""
    before_all: bool
    """Whether the wait is that of the packets of earlier iterations: the probe has left before the iteration's."""
    answered: bool = True
    """Whether the probe was answered. If not, the wait is the time until now, and will be longer."""
    share: float = 1.0
    """The share of the gradient that left before the probe. `wait_s` is the probe's own wait divided by `share`."""


class LinkProbe:
    """The probe of one protocol core, whose functions `call` calls by name."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def begin(self) -> None:
        """Probe the link in each iteration from now on."""
        self._call("probe_link")

    def take(self, now: float) -> LinkWait | None:
        """Return how long packets wait in the link; None without a new measurement."""
        taken = np.zeros(7)
        if not self._call("take_link_wait", now, taken.ctypes.data):
            return None
        wait_s, sent_s, passed_s, sent_bytes, before_all, answered, share = taken.tolist()
        return LinkWait(wait_s, sent_s, passed_s, int(sent_bytes), bool(before_all), bool(answered), share)
