"""The changes from a status of the controller to the next status, as text for the page."""

from collections.abc import Iterator

from kofn.report.recoveries import Status

News = tuple[str, str]
"""The kind and the words of an EventFrame."""


class StatusNews:
    """The news in successive statuses of a job."""

    def __init__(self) -> None:
        """Begin without a status. The first status gives no news, except the changes of k that were decided already."""
        self._decided: dict[str, object] | None = None  # the latest known change
        self._states: dict[int, str] = {}
        self._waiting = ""

    def of(self, status: Status) -> Iterator[News]:
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

    def _changes(self, status: Status) -> Iterator[News]:
        changes = status.get("changes", [])
        new = changes.index(self._decided) + 1 if self._decided in changes else 0
        self._decided = changes[-1] if changes else None
        for change in changes[new:]:
            if change["k"] != change["previous_k"]:
                yield "k", f"k is {change['k']}, was {change['previous_k']}: {change['reason']}"
            else:
                yield "k", f"rule for late gradients is {change.get('late_gradient')}: {change['reason']}"
