"""The phases of a request: their names, their order, and their kinds.

Pending -> Preparing -> Starting -> Running -> Succeeded
   |          |            |           |
   |          +------------+-----------+--> Retrying -> Preparing, or Failed
   |          '--> Refused
   '--> Denied, Refused
"""

from typing import Literal, get_args

Phase = Literal["Pending", "Preparing", "Starting", "Running", "Retrying", "Succeeded", "Failed", "Refused", "Denied"]

FOLLOWING: dict[Phase, tuple[Phase, ...]] = {
    "Pending": ("Preparing", "Refused", "Denied"),
    "Preparing": ("Starting", "Succeeded", "Retrying", "Failed", "Refused"),
    "Starting": ("Running", "Succeeded", "Retrying", "Failed"),
    "Running": ("Succeeded", "Retrying", "Failed"),
    "Retrying": ("Preparing", "Failed"),
    "Succeeded": (),
    "Failed": (),
    "Refused": (),
    "Denied": (),
}
"""The phases that may follow each phase. A workload may end while its request is still being prepared."""

ENDED = tuple(phase for phase, following in FOLLOWING.items() if not following)
"""The final phases."""

UNSUCCESSFUL: tuple[Phase, ...] = ("Failed", "Refused", "Denied")
"""The final phases of a request without a result."""

TROUBLED: tuple[Phase, ...] = (*UNSUCCESSFUL, "Retrying")
"""The phases that a request enters because something went wrong."""

CONDITIONS: dict[str, tuple[Phase, ...]] = {
    "Accepted": tuple(phase for phase in FOLLOWING if phase not in ("Pending", "Refused", "Denied")),
    "Running": ("Running",),
    "Complete": ("Succeeded",),
    "Failed": UNSUCCESSFUL,
}
"""The phases in which each condition of the status is True."""

assert tuple(FOLLOWING) == get_args(Phase)
