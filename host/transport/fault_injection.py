"""Injected network faults: what becomes of each datagram of one worker, from the run's TOML and its seed.

Decides only; transport.udp carries it out.  The same decisions come again for the same seed, worker, direction and
sequence of datagrams.  Rules for the switch's ports are not for this side (kofn/run/port_faults.py).
"""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kofn.config.schema import FaultSection
from kofn.host.errors import WireError
from kofn.host.wire.packet import decode_header


class Copy(NamedTuple):
    """One copy of a datagram that arrives, after an extra delay in seconds (0: at once).

    One that is to be held back arrives after the next copy of its direction instead (transport.udp.Line).
    """

    delay_s: float
    datagram: bytes
    held: bool = False


class Faults:
    """The faults of one worker in one direction ("send" or "receive"); rules apply one after another to every copy."""

    def __init__(self, rules: Iterable[FaultSection], *, rank: int, direction: str, seed: int) -> None:
        self._rules = [
            rule
            for rule in rules
            if rule.where == "host"
            and rule.direction in (direction, "both")
            and (rule.workers is None or rank in rule.workers)
        ]
        self._random = random.Random(f"{seed} {rank} {direction}")
        self._datagrams = 0

    def __bool__(self) -> bool:
        """Whether anything can ever happen."""
        return bool(self._rules)

    def fate(self, datagram: bytes, elapsed_s: float) -> Sequence[Copy]:
        """The copies that arrive, none if it is lost; `elapsed_s` is the time since the worker started."""
        self._datagrams += 1
        copies = [Copy(0.0, datagram)]
        for rule in self._rules:
            if rule.from_s <= elapsed_s < rule.until_s and self._scripted(rule, datagram):
                copies = [fate for copy in copies for fate in self._apply(rule, copy)]
        return copies

    def _scripted(self, rule: FaultSection, datagram: bytes) -> bool:
        """Whether the rule is for this datagram."""
        among = rule.packets is None or self._datagrams in rule.packets
        return among and (rule.blocks is None or _block_of(datagram) in rule.blocks)

    def _apply(self, rule: FaultSection, copy: Copy) -> list[Copy]:
        """One rule on one copy."""
        if self._happens(rule.drop):
            return []
        times = 2 if self._happens(rule.duplicate) else 1
        return [self._changed(rule, copy) for _ in range(times)]

    def _changed(self, rule: FaultSection, copy: Copy) -> Copy:
        """Later, with another bit, out of order; or as it was."""
        datagram = self._flipped(copy.datagram) if copy.datagram and self._happens(rule.corrupt) else copy.datagram
        return Copy(copy.delay_s + self._delay_s(rule), datagram, copy.held or self._happens(rule.reorder))

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def _flipped(self, datagram: bytes) -> bytes:
        """One bit is the other one."""
        bit = self._random.randrange(8 * len(datagram))
        return (int.from_bytes(datagram, "big") ^ 1 << bit).to_bytes(len(datagram), "big")

    def _delay_s(self, rule: FaultSection) -> float:
        """Extra delay; unequal ones reorder."""
        return (rule.delay_ms + self._random.uniform(0.0, rule.jitter_ms)) / 1000


def _block_of(datagram: bytes) -> int | None:
    """Of a packet; None where it is none."""
    try:
        return decode_header(datagram).block
    except WireError:
        return None
