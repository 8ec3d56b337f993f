"""events.jsonl of a trial: the changes of its processes, links and objective, with their times."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kofn_common.results.json_lines import read_json_lines


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of events.jsonl: the result of an event."""

    time: float  # Unix
    iteration: int  # the newest iteration that any worker had finished
    action: str  # "kill", "start", "objective", "link" or "cpu"; "late": a started worker could not join in time;
    # "resume": kofn run --resume continued after the iteration
    name: str  # the process or objective; "link": host and rate; "cpu": process and share; "resume": repeated work
    missed: str = ""  # why the action was not done; empty: it was done

    @property
    def words(self) -> str:
        """The event as text: "worker-2 killed at iteration 40"."""
        if self.action == "late":
            return f"{self.name} came too late: {self.missed}"
        if self.action == "resume":
            return f"training resumed after iteration {self.iteration} ({self.name})"
        what, done = self._what
        return f"{what} not {done}: {self.missed}" if self.missed else f"{what} {done} at iteration {self.iteration}"

    @property
    def done(self) -> str:
        """The change without its time: "worker-2 killed"."""
        return " ".join(self._what)

    @property
    def _what(self) -> tuple[str, str]:
        things = {"objective": "objective", "link": "link of", "cpu": "processor of"}
        if self.action == "resume":
            return "training", "resumed"
        what = f"{things[self.action]} {self.name}" if self.action in things else self.name
        return what, {"kill": "killed", "start": "started"}.get(self.action, "set")


def read_event_log(path: Path) -> list[LoggedEvent]:
    """Return the lines of an events.jsonl; none without events."""
    return read_json_lines(path, LoggedEvent)


def killed_for_good(events: Sequence[LoggedEvent]) -> set[str]:
    """Return the killed processes that did not come back in time."""
    late = {entry.name for entry in events if entry.action == "late"}
    killed = {entry.name for entry in events if entry.action == "kill" and not entry.missed}
    last = {entry.name: entry.action for entry in events if not entry.missed}
    return {name for name in killed if last[name] == "kill" or name in late}


def never_started(events: Sequence[LoggedEvent]) -> set[str]:
    """Return the workers that were to join late, and did not join in time."""
    started = {entry.name for entry in events if entry.action == "start" and not entry.missed}
    late = {entry.name for entry in events if entry.action == "late"}
    killed = {entry.name for entry in events if entry.action == "kill" and not entry.missed}
    first: dict[str, LoggedEvent] = {}
    for entry in events:
        if entry.action in ("kill", "start"):
            first.setdefault(entry.name, entry)
    wanted = {name for name, entry in first.items() if entry.action == "start" and entry.missed}
    return (wanted - started | late) - killed


def restarts(events: Iterable[LoggedEvent]) -> int:
    """Return how often a process was restarted after it had been killed."""
    killed: Counter[str] = Counter()
    again = 0
    for entry in events:
        if entry.missed:
            continue
        if entry.action == "start" and killed[entry.name]:
            again += 1
        killed[entry.name] += entry.action == "kill"
    return again
