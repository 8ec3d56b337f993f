"""Explains a stall of two seconds in one line: which workers wait for which. No I/O, no clock."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kofn_common.results.ranks import name_workers
from kofn_common.results.worker_state import STARTING

STALL_S = 2.0
START_S = 5.0
"""The limit before the first iteration and after the last iteration, because starting and ending take time."""
AGAIN_S = 10.0
"""The same explanation is repeated after this time."""

TIME = re.compile(r"\d+(\.\d+)? s\b")
"""A time in a reason: times change while the reason stays the same."""

LOADING = "loading the model"
"""The words for the start of a worker with kofn's own training, before the worker attaches."""

OUT = (STARTING, "not started", "killed", "absent", "attached", "joining", "lost")
"""States in which a worker sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledWorker:
    """The known state of one worker."""

    rank: int
    iteration: int
    """The newest iteration that the worker has finished; 0: none."""
    state: str
    silent_s: float = 0.0
    done: bool = False
    """Whether the worker has ended as it should."""

    def notes(self, newest: int) -> str:
        """Return notes for a person: "killed, at iteration 40"; empty without any."""
        notes = [self.state] if self.state in OUT else []
        if self.iteration and (self.iteration < newest or not notes):
            notes.append(f"at iteration {self.iteration}")
        if self.silent_s >= 1.0:
            notes.append(f"silent for {self.silent_s:.0f} s")
        return ", ".join(notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The facts for an explanation."""

    members: Sequence[StalledWorker]
    start: str = LOADING
    """The worker's start, in words."""
    waiting: str = ""
    """The controller's own words."""
    controller_away: bool = False
    switch_connected: bool = True
    recent: Sequence[str] = ()
    """Recent interventions."""


def explain(scene: Scene) -> str:
    """Return which workers wait for which. The line has no duration, because a duration changes
    while the reason stays the same."""
    start = starting(scene)
    parts = [start or _workers(scene.members)]
    if scene.controller_away:
        parts.append("the controller is away: k stays as it is in the switch")
    elif not start:
        unasked = "" if scene.switch_connected else "it has no connection to the switch"
        said = scene.waiting or unasked
        parts += [f"the controller says: {said}"] if said else []
    if scene.recent:
        parts.append(f"just before: {', '.join(scene.recent)}")
    return "; ".join(parts)


def starting(scene: Scene) -> str:
    """Return a line about the start while the job waits only for starting workers; empty otherwise."""
    waited_for = [member for member in scene.members if member.state != "attached"]
    if not waited_for or any(member.iteration or member.state != STARTING for member in waited_for):
        return ""
    return f"starting: {scene.start} (not attached yet: {_names(waited_for)})"


def _workers(members: Sequence[StalledWorker]) -> str:
    """Return the workers that are behind or out. If there are none, return the sums that all workers wait for."""
    newest = max((member.iteration for member in members), default=0)
    if done := [member for member in members if member.done]:
        rest = _described([member for member in members if not member.done], newest)
        end = f"{rest} did not" if rest else "their processes are about to end"
        return f"{_names(done)} ended at iteration {newest}, {end}"
    held_up = [member for member in members if member.iteration < newest or member.state in OUT or member.silent_s >= 1]
    others = [member for member in members if member not in held_up]
    if not held_up and not newest:
        return "all workers are in their first iteration"
    if not held_up:
        return f"all workers have finished iteration {newest} and wait for sums of {newest + 1}"
    names = _described(held_up, newest)
    if not others:
        return f"no worker can go on: {names}"
    return f"{_names(others)} at iteration {newest} may wait for {names}"


def _names(members: Iterable[StalledWorker]) -> str:
    return name_workers(member.rank for member in members)


def _described(members: Iterable[StalledWorker], newest: int) -> str:
    """Return workers grouped by their notes: "worker 2 (killed, at iteration 40), workers 3, 5 (joining)"."""
    alike: dict[str, list[StalledWorker]] = {}
    for member in members:
        alike.setdefault(member.notes(newest), []).append(member)
    return ", ".join(f"{_names(group)} ({notes})" if notes else _names(group) for notes, group in alike.items())


class Watch:
    """Turns a stall into lines: once when it is long enough, again when the reason changes, and its end.

    >>> watch = Watch()
    >>> [watch.lines(idle_s, 5.0, "worker 2 is gone") for idle_s in (4.0, 6.0, 7.0, 0.1)]
    [[], ['no iteration for 6 s: worker 2 is gone'], [], ['goes on after 7.0 s']]
    """

    def __init__(self) -> None:
        self.stall = ""
        """The present stall in one line; empty during progress."""
        self._said = ""
        self._said_s = 0.0
        self._longest_s = 0.0

    def lines(self, idle_s: float, limit_s: float, reason: str) -> list[str]:
        """Return lines to show now, `idle_s` after the last finished iteration; a stall is longer than `limit_s`."""
        if idle_s < limit_s:
            return self._over()
        self._longest_s = idle_s
        self.stall = f"no iteration for {idle_s:.0f} s: {reason}"
        same = TIME.sub("", reason)
        if same == self._said and idle_s - self._said_s < AGAIN_S:
            return []
        self._said, self._said_s = same, idle_s
        return [self.stall]

    def _over(self) -> list[str]:
        if not self.stall:
            return []
        self.stall = self._said = ""
        return [f"goes on after {self._longest_s:.1f} s"]
