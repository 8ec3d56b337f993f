"""The number of recoveries and dropped packets in a trial, from the controller's statuses and events.

A restarted controller or switch counts from 0 again; its earlier counts are added.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kofn_common.results.event_log import LoggedEvent, restarts
from kofn_common.results.json_lines import read_json_lines

Status = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """Recoveries of one job in one trial."""

    restarts: int
    """Restarts of processes."""
    rejoins: int
    """Times that a worker attached again after a restart of the worker or the controller, or a broken connection."""
    regroups: int
    """New generations of the job's slots after the first one."""
    switch_counters: dict[str, int]
    """Packets that the switch counted, of all jobs, by name."""
    refused: dict[str, int]
    """Packets that the switch refused, of all jobs, by sender."""

    @property
    def switch_checksum_errors(self) -> int:
        """Corrupted packets that the switch dropped, of all jobs."""
        return self.switch_counters.get("BAD_CHECKSUM", 0)


def recoveries(statuses: Sequence[Status], events: Iterable[LoggedEvent]) -> Recoveries:
    """Count all recoveries of one trial."""
    lives = _lives(statuses)
    attachments = [entry for life in lives for entry in life[-1].get("worker", ()) if entry.get("attachments")]
    return Recoveries(
        restarts=restarts(events),
        rejoins=sum(entry["attachments"] for entry in attachments) - len({entry["rank"] for entry in attachments}),
        regroups=sum(life[-1].get("regroups", 0) for life in lives),
        switch_counters=_totals(statuses, "counters"),
        refused=_totals(statuses, "refused"),
    )


def _totals(statuses: Sequence[Status], field: str) -> dict[str, int]:
    """Return the totals of counters by name, without the counters that stayed 0."""
    counted = [status.get(field, {}) for status in statuses]
    names = dict.fromkeys(name for counters in counted for name, count in counters.items() if count)
    return {name: total([counters.get(name, 0) for counters in counted]) for name in names}


def read_lines(path: Path) -> list[Status]:
    """Read the controller's statuses, or the lines of the controller's journal; empty if the file is missing after an
    early failure."""
    return read_json_lines(path, Status)


def total(counts: Sequence[int]) -> int:
    """Return the total of a counter that restarts at 0: the sum of the last values before each restart."""
    followers = [*counts[1:], -1]
    return sum(count for count, follower in zip(counts, followers, strict=False) if follower < count)


def _lives(statuses: Sequence[Status]) -> list[list[Status]]:
    """Split the statuses by controller process. A shorter uptime than before means that the controller was
    restarted."""
    lives: list[list[Status]] = []
    for status in statuses:
        if not lives or status.get("uptime_s", 0.0) < lives[-1][-1].get("uptime_s", 0.0):
            lives.append([])
        lives[-1].append(status)
    return lives
