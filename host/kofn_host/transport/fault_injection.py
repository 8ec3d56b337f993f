"""Injected network faults: the fate of each datagram of one worker, by the run's TOML and seed.

SendQueue carries the decisions out.  Decisions are the same for the same seed, worker, direction and sequence of
datagrams.
kofn/run/port_faults.py has the rules for the switch's ports.
"""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kofn_common.config.faults import FaultSection
from kofn_common.config.schema import Config
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import ITERATION, decode_header


class Copy(NamedTuple):
    """One arriving copy of a datagram, after an extra delay in seconds (0: at once).

    A `held` copy arrives after the next copy of its direction (transport.send_queue.SendQueue).
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
        """Return whether any rule applies to this worker and direction."""
        return bool(self._rules)

    def fate(self, datagram: bytes, elapsed_s: float) -> Sequence[Copy]:
        """Return the copies that arrive; no copy if the datagram is lost.

        `elapsed_s`: seconds since the worker started.
        """
        self._datagrams += 1
        copies = [Copy(0.0, datagram)]
        for rule in self._rules:
            if rule.from_s <= elapsed_s < rule.until_s and self._scripted(rule, datagram):
                copies = [fate for copy in copies for fate in self._apply(rule, copy)]
        return copies

    def _scripted(self, rule: FaultSection, datagram: bytes) -> bool:
        """Return whether the rule applies to this datagram."""
        among = rule.packets is None or self._datagrams in rule.packets
        return among and (rule.blocks is None or _block_of(datagram) in rule.blocks)

    def _apply(self, rule: FaultSection, copy: Copy) -> list[Copy]:
        """Apply one rule to one copy."""
        if self._happens(rule.drop):
            return []
        times = 2 if self._happens(rule.duplicate) else 1
        return [self._changed(rule, copy) for _ in range(times)]

    def _changed(self, rule: FaultSection, copy: Copy) -> Copy:
        """Return the copy with the rule's delay, bit error and reordering, if any."""
        datagram = copy.datagram
        if datagram and self._happens(rule.corrupt):
            datagram = self._flipped(datagram)
        if self._happens(rule.exchange):
            datagram = _exchanged(datagram)
        return Copy(copy.delay_s + self._delay_s(rule), datagram, copy.held or self._happens(rule.reorder))

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def _flipped(self, datagram: bytes) -> bytes:
        """Return the datagram with one bit flipped."""
        bit = self._random.randrange(8 * len(datagram))
        return (int.from_bytes(datagram, "big") ^ 1 << bit).to_bytes(len(datagram), "big")

    def _delay_s(self, rule: FaultSection) -> float:
        """Return an extra delay; unequal delays reorder datagrams."""
        return (rule.delay_ms + self._random.uniform(0.0, rule.jitter_ms)) / 1000


def faults_of(config: Config, rank: int) -> tuple[Faults, Faults]:
    """Return a worker's faults when it sends and when it receives."""
    sending, receiving = (
        Faults(config.fault, rank=rank, direction=direction, seed=config.run.seed) for direction in ("send", "receive")
    )
    return sending, receiving


def _exchanged(datagram: bytes) -> bytes:
    """Return a packet with the two words of its iteration exchanged: its Internet checksum stays right."""
    high, low = datagram[ITERATION][:2], datagram[ITERATION][2:]
    return b"".join((datagram[: ITERATION.start], low, high, datagram[ITERATION.stop :]))


def _block_of(datagram: bytes) -> int | None:
    """Return a packet's block; None if the datagram is not a packet."""
    try:
        return decode_header(datagram).block
    except WireError:
        return None
