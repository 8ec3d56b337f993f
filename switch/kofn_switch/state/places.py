"""Numbers of places, the lowest free one first."""

from heapq import heappop, heappush

from kofn_switch.errors import TableFull


class Places:
    """Gives out the numbers 0, 1, 2, ... and takes them back."""

    def __init__(self, what: str, capacity: int) -> None:
        """Take the `capacity`; `what` names the places' owner in TableFull."""
        self._what = what
        self._capacity = capacity
        self._next = 0
        self._freed: list[int] = []

    def take(self) -> int:
        """Return the lowest free number. Raise TableFull."""
        if self._freed:
            return heappop(self._freed)
        if self._next == self._capacity:
            raise TableFull(f"{self._what} is full: {self._capacity} entries")
        self._next += 1
        return self._next - 1

    def free(self, number: int) -> None:
        heappush(self._freed, number)
