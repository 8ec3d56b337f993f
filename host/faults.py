"""Injected network faults: what becomes of each datagram of one worker, from the run's TOML and its seed.

Decides only; host.transport carries it out.  The same decisions come again for the same seed, worker, direction and
sequence of datagrams.
"""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from run.config import Fault


class Copy(NamedTuple):
    """One copy of a datagram that arrives, after an extra delay in seconds (0: at once)."""

    delay_s: float
    datagram: bytes


class Faults:
    """The faults of one worker in one direction ("send" or "receive"); rules apply one after another to every copy."""

    def __init__(self, rules: Iterable[Fault], *, rank: int, direction: str, seed: int) -> None:
        self._rules = [
            rule
            for rule in rules
            if rule.direction in (direction, "both") and (rule.workers is None or rank in rule.workers)
        ]
        self._random = random.Random(f"{seed} {rank} {direction}")

    def __bool__(self) -> bool:
        """Whether anything can ever happen."""
        return bool(self._rules)

    def fate(self, datagram: bytes, elapsed_s: float) -> Sequence[Copy]:
        """The copies that arrive, none if it is lost; `elapsed_s` is the time since the worker started."""
        copies = [Copy(0.0, datagram)]
        for rule in self._rules:
            if rule.from_s <= elapsed_s < rule.until_s:
                copies = [fate for copy in copies for fate in self._apply(rule, copy)]
        return copies

    def _apply(self, rule: Fault, copy: Copy) -> list[Copy]:
        """One rule on one copy."""
        if self._random.random() < rule.drop:
            return []
        times = 2 if self._random.random() < rule.duplicate else 1
        return [Copy(copy.delay_s + self._delay_s(rule), copy.datagram) for _ in range(times)]

    def _delay_s(self, rule: Fault) -> float:
        """Extra delay; unequal ones reorder."""
        return (rule.delay_ms + self._random.uniform(0.0, rule.jitter_ms)) / 1000
