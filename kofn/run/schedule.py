"""The due entries of a job's [[event]], [[link]] and [[cpu]].

No I/O and no clock: the caller passes times.

>>> schedule = Schedule([EventSection(at_iteration=40, kill="worker-2", after_s=0.5)])
>>> schedule.reached(40, 10.0)  # some worker has finished iteration 40 at 10 s
>>> schedule.due(10.0), [action(event) for event in schedule.due(10.5)]
([], [('kill', 'worker-2')])
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from kofn_common.config.errors import ConfigError
from kofn_common.config.interventions import CpuSection, EventSection, LinkSection
from kofn_common.config.schema import Config

Due = EventSection | LinkSection | CpuSection
"""An action that is due once an iteration is reached."""

Timed = TypeVar("Timed", bound=Due)


class Schedule:
    """A job's events, each due once, in the order of their iterations and delays."""

    def __init__(self, events: Iterable[Due]) -> None:
        self._waiting: list[Due] = in_order(events)
        self._reached_s: dict[int, float] = {}

    def resume(self, done: Sequence[tuple[str, str]]) -> list[Due]:
        """Remove the events whose action() has been carried out, and return the removed events."""
        left, found = list(done), list[Due]()
        for event in [*self._waiting]:
            if action(event) in left:
                left.remove(action(event))
                self._waiting.remove(event)
                found.append(event)
        return found

    def reached(self, iteration: int, now_s: float) -> None:
        """Note that a worker has finished this iteration. An event's delay counts from the first worker."""
        for event in self._waiting:
            if event.at_iteration <= iteration:
                self._reached_s.setdefault(event.at_iteration, now_s)

    def due(self, now_s: float) -> list[Due]:
        """Return the actions that are due now, each only once."""
        due = [event for event in self._waiting if self._when(event) <= now_s]
        self._waiting = [event for event in self._waiting if event not in due]
        return sorted(due, key=self._when)

    @property
    def waiting(self) -> Sequence[Due]:
        """The events that were not due yet. An event whose iteration is never reached stays among them."""
        return self._waiting

    @property
    def starting(self) -> bool:
        """Whether an event is certain to start a process: the event's iteration is reached, and its delay is not
        over."""
        certain = (event for event in self._waiting if event.at_iteration in self._reached_s)
        return any(isinstance(event, EventSection) and event.start is not None for event in certain)

    def _when(self, event: Due) -> float:
        return self._reached_s.get(event.at_iteration, float("inf")) + event.after_s


def in_order(events: Iterable[Timed]) -> list[Timed]:
    """Sort by iteration, then by delay. Events with the same iteration and delay keep the file's order."""
    return sorted(events, key=lambda event: (event.at_iteration, event.after_s))


def action(event: Due) -> tuple[str, str]:
    """Return the action and its subject: a process, an objective, or the workers of a link or processor."""
    if isinstance(event, LinkSection):
        return "link", f"{_workers(event)} ({event.mbps:g} Mbit/s)"
    if isinstance(event, CpuSection):
        return "cpu", f"{_workers(event)} ({event.share:.0%})"
    (given,) = event.actions().items()  # exactly one action, because the configuration is checked
    return given


def _workers(event: LinkSection | CpuSection) -> str:
    return ", ".join(f"worker-{rank}" for rank in event.workers)


def late_joiners(events: Iterable[EventSection]) -> set[str]:
    """Return the workers whose first event is a start."""
    first: dict[str, str] = {}
    for event in in_order(events):
        what, name = action(event)
        if what != "objective":
            first.setdefault(name, what)
    return {name for name, what in first.items() if what == "start" and name.startswith("worker-")}


def check_story(config: Config) -> None:
    """Check that a process that is killed runs, that a process that is started does not run, and that enough workers
    start. Raise ConfigError."""
    events, job = config.event, config.job
    late = late_joiners(events)
    running = dict.fromkeys([*config.control_plane, *(f"worker-{rank}" for rank in range(job.workers))], True)
    running.update(dict.fromkeys(late, False))
    for event in in_order(events):
        what, name = action(event)
        if what != "objective" and running[name] != (what == "kill"):
            wanted, state = ("run", "does not") if what == "kill" else ("not run", "does")
            raise ConfigError(
                f"event.{what}: {name!r} must {wanted} at iteration {event.at_iteration}, but it {state} then"
            )
        running[name] = what == "start"
    needed = job.start_workers or job.workers
    if job.workers - len(late) < needed:
        raise ConfigError(
            f"job.start_workers must be 1 to {job.workers - len(late)}, got {needed}: {', '.join(sorted(late))} are "
            "started later, by an event"
            if job.workers > len(late)
            else "event.start is the first event of every worker: one worker must be there from the beginning"
        )
