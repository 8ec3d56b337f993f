"""A deadline that moves rings once, when it has passed, and not for each place where it has been."""

from kofn.host.protocol.deadline_timer import POSTPONED_S, DeadlineTimer
from kofn.sim.clock import VirtualClock


class Rings:
    def __init__(self) -> None:
        self.clock, self.at = VirtualClock(), list[float]()
        self.alarm = DeadlineTimer(lambda: self.at.append(self.clock.time()))

    def set(self, *deadlines: float | None) -> list[float]:
        """When it rings, where each deadline is set at once."""
        for deadline in deadlines:
            self.alarm.set(deadline, self.clock)
        self.clock.run()
        return self.at


def test_an_earlier_deadline_counts_at_once() -> None:
    assert Rings().set(5.0, 3.0) == [3.0]


def test_a_later_deadline_is_waited_for_unless_it_is_a_little_later() -> None:
    assert Rings().set(3.0, 5.0) == [5.0]
    assert Rings().set(3.0, 3.0 + POSTPONED_S / 2) == [3.0]
    steps = [3.0 + step * POSTPONED_S / 2 for step in range(100)]
    assert abs(Rings().set(*steps)[0] - steps[-1]) < POSTPONED_S


def test_no_deadline_changes_nothing_and_what_is_cancelled_does_not_ring() -> None:
    assert Rings().set(None) == []
    assert Rings().set(3.0, None) == [3.0]
    rings = Rings()
    rings.alarm.set(3.0, rings.clock)
    rings.alarm.cancel()
    assert rings.set() == []


def test_it_rings_again_when_it_is_set_again() -> None:
    rings = Rings()
    assert rings.set(3.0) == [3.0]
    assert rings.set(3.0) == [3.0, 3.0]
