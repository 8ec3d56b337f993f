"""What is due of a job's [[event]] and [[link]] entries, and what was done about them.

No I/O and no clock: times come in.

>>> schedule = Schedule([*config.event, *config.link])
>>> schedule.reached(40, now)          # some worker has finished iteration 40
>>> for event in schedule.due(now): ...
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from run.config import CONTROL_PLANE, Event, Job, Link
from run.errors import ConfigError


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One line of events.jsonl: what became of an event."""

    time: float  # Unix
    iteration: int  # the newest one that any worker had finished
    action: str  # "kill", "start", "objective" or "link"; "late": what was started could not join any more
    name: str  # of the process, or the objective, or whose link has which rate
    missed: str = ""  # why nothing came of it; empty: it was done

    @property
    def words(self) -> str:
        """For a person: "worker-2 killed at iteration 40"."""
        if self.action == "late":
            return f"{self.name} came too late: {self.missed}"
        done = {"kill": "killed", "start": "started"}.get(self.action, "set")
        what = {"objective": f"objective {self.name}", "link": f"link of {self.name}"}.get(self.action, self.name)
        return f"{what} not {done}: {self.missed}" if self.missed else f"{what} {done} at iteration {self.iteration}"


Due = Event | Link
"""What happens once an iteration is reached."""

Timed = TypeVar("Timed", bound=Due)


class Schedule:
    """A job's events, each due once, in the order of their iterations and delays."""

    def __init__(self, events: Iterable[Due]) -> None:
        """Nothing has been reached."""
        self._waiting: list[Due] = in_order(events)
        self._reached_s: dict[int, float] = {}

    def reached(self, iteration: int, now_s: float) -> None:
        """A worker has finished this iteration; the delay of what it sets off counts from the first time."""
        for event in self._waiting:
            if event.at_iteration <= iteration:
                self._reached_s.setdefault(event.at_iteration, now_s)

    def due(self, now_s: float) -> list[Due]:
        """What is to be done now, each only once."""
        due = [event for event in self._waiting if self._when(event) <= now_s]
        self._waiting = [event for event in self._waiting if event not in due]
        return sorted(due, key=self._when)

    @property
    def waiting(self) -> Sequence[Due]:
        """Everything that is still to come, if its iteration comes."""
        return self._waiting

    @property
    def starting(self) -> bool:
        """Whether a start is certain to come: its iteration is reached, its delay is not over."""
        certain = (event for event in self._waiting if event.at_iteration in self._reached_s)
        return any(isinstance(event, Event) and event.start is not None for event in certain)

    def _when(self, event: Due) -> float:
        return self._reached_s.get(event.at_iteration, float("inf")) + event.after_s


def in_order(events: Iterable[Timed]) -> list[Timed]:
    """By iteration, then delay; as in the file where both are equal."""
    return sorted(events, key=lambda event: (event.at_iteration, event.after_s))


def action(event: Due) -> tuple[str, str]:
    """What is done, and to which process, with which objective or to whose link."""
    if isinstance(event, Link):
        return "link", f"{', '.join(f'worker-{rank}' for rank in event.workers)} ({event.mbps:g} Mbit/s)"
    (given,) = event.actions().items()  # the configuration is checked: exactly one
    return given


def late_joiners(events: Iterable[Event]) -> set[str]:
    """The workers whose first event is a start."""
    first: dict[str, str] = {}
    for event in in_order(events):
        what, name = action(event)
        if what != "objective":
            first.setdefault(name, what)
    return {name for name, what in first.items() if what == "start" and name not in CONTROL_PLANE}


def check_story(events: Sequence[Event], job: Job) -> None:
    """What is killed must run, what is started must not, and enough workers must be there at first; ConfigError."""
    late = late_joiners(events)
    running = dict.fromkeys([*CONTROL_PLANE, *(f"worker-{rank}" for rank in range(job.workers))], True)
    running.update(dict.fromkeys(late, False))
    for event in in_order(events):
        what, name = action(event)
        if what != "objective" and running[name] != (what == "kill"):
            state = "runs already" if running[name] else "does not run"
            raise ConfigError(f"event.{what} is {name!r} at iteration {event.at_iteration}: it {state} then")
        running[name] = what == "start"
    needed = job.start_workers or job.workers
    if job.workers - len(late) < needed:
        raise ConfigError(
            f"job.start_workers is {needed}, but {', '.join(sorted(late))} are started later, by an event: "
            f"1 to {job.workers - len(late)} is allowed"
            if job.workers > len(late)
            else "event.start is the first event of every worker: one must be there from the beginning"
        )


def read_happenings(path: Path) -> list[Happening]:
    """The lines of an events.jsonl; none where nothing happened."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Happening) for line in path.read_bytes().splitlines()]


def killed_for_good(happenings: Sequence[Happening]) -> set[str]:
    """Who was killed and did not come back, or not in time."""
    late = {entry.name for entry in happenings if entry.action == "late"}
    killed = {entry.name for entry in happenings if entry.action == "kill" and not entry.missed}
    last = {entry.name: entry.action for entry in happenings if not entry.missed}
    return {name for name in killed if last[name] == "kill" or name in late}


def never_started(happenings: Sequence[Happening]) -> set[str]:
    """Who was to join late, and did not, or not in time."""
    started = {entry.name for entry in happenings if entry.action == "start" and not entry.missed}
    late = {entry.name for entry in happenings if entry.action == "late"}
    killed = {entry.name for entry in happenings if entry.action == "kill" and not entry.missed}
    wanted = {entry.name for entry in happenings if entry.action == "start" and entry.missed}
    return (wanted - started | late) - killed


def restarts(happenings: Iterable[Happening]) -> int:
    """How many processes were started again after they had been killed."""
    killed: Counter[str] = Counter()
    again = 0
    for entry in happenings:
        if entry.missed:
            continue
        if entry.action == "start" and killed[entry.name]:
            again += 1
        killed[entry.name] += entry.action == "kill"
    return again
