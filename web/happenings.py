"""What happened in a trial, in words for the page: from its events, its configuration and the controller's statuses."""

from collections.abc import Iterable, Iterator

from kofn.config.schema import Config, FaultSection
from kofn.report.recoveries import Status
from kofn.results.event_log import LoggedEvent
from kofn.results.ranks import name_workers

Happening = tuple[str, str]
"""Kind and words of an EventFrame."""


class StatusNews:
    """What is new in one status after another."""

    def __init__(self) -> None:
        """The first status is no news, but for a k that was decided already."""
        self._decided: dict[str, object] | None = None  # the latest change that is known
        self._states: dict[int, str] = {}
        self._waiting = ""

    def of(self, status: Status) -> Iterator[Happening]:
        yield from self._changes(status)
        for worker in status["worker"]:
            state, before = worker.get("state", ""), self._states.get(worker["rank"], "")
            if state == "lost" or (before == "lost" and state):
                yield "worker", f"worker {worker['rank']} is {state}, was {before}"
            self._states[worker["rank"]] = state
        waiting = status.get("waiting", "").partition(":")[0]
        if waiting not in ("", "starting", self._waiting):
            yield "controller", f"waiting: {status['waiting']}"
        self._waiting = waiting

    def _changes(self, status: Status) -> Iterator[Happening]:
        changes = status.get("changes", [])
        new = changes.index(self._decided) + 1 if self._decided in changes else 0
        self._decided = changes[-1] if changes else None
        for change in changes[new:]:
            if change["k"] != change["previous_k"]:
                yield "k", f"k is {change['k']}, was {change['previous_k']}: {change['reason']}"
            else:
                yield "k", f"rule for late gradients is {change.get('late_gradient')}: {change['reason']}"


def logged(event: LoggedEvent) -> Happening:
    return "event", event.words


def straggler_changes(config: Config) -> dict[int, list[str]]:
    """By iteration, what becomes of whose blocking from it on; the first iteration's is no change."""
    changes: dict[int, list[str]] = {}
    for entry in config.straggler:
        if entry.from_iteration > 1:
            words = f"blocking of {name_workers(entry.workers)} is {entry.mean_ms:g} ms an iteration from here on"
            changes.setdefault(entry.from_iteration, []).append(words)
    return changes


def fault_words(fault: FaultSection) -> str:
    """An entry of [[fault]]: whose packets, and what is done to them."""
    shares = [f"{getattr(fault, name):.2g} {words}" for name, words in _SHARES.items() if getattr(fault, name)]
    times = [f"{getattr(fault, name):g} ms {words}" for name, words in _TIMES.items() if getattr(fault, name)]
    who = "all workers" if fault.workers is None else name_workers(fault.workers)
    until = f" until {fault.until_s:g} s" if fault.until_s != float("inf") else ""
    since = f" from {fault.from_s:g} s" if fault.from_s else ""
    return (
        f"{', '.join(shares + times)} of the packets of {who} ({fault.direction}, at the {fault.where}){since}{until}"
    )


_SHARES = {"drop": "lost", "duplicate": "duplicated", "corrupt": "corrupted", "reorder": "reordered"}
_TIMES = {"delay_ms": "delay", "jitter_ms": "jitter"}


def fault_changes(faults: Iterable[FaultSection]) -> list[tuple[float, str]]:
    """When faults begin and end, seconds since the workers started."""
    begins = [(fault.from_s, f"fault begins: {fault_words(fault)}") for fault in faults]
    ends = [(fault.until_s, f"fault ends: {fault_words(fault)}") for fault in faults if fault.until_s != float("inf")]
    return sorted(begins + ends)
