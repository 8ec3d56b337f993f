"""A switch answers any packets like the slot model, bit by bit, with few slots and changing k.

test_machine.py has packets that workers would send; here they are random.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kofn_common.wire.packet import EVERYONE, Kind, KofnHeader, Lanes
from kofn_common.wire.sizes import PARTS, WEIGHT_MAX
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.mirror import Mirror

pytestmark = pytest.mark.root

EXAMPLES = 4
PACKETS = 200
EACH = 12
"""Packets before the iteration grows by one."""

SEEN = {"OPENED", "ADDED", "CLOSED", "LATE", "STALE", "FORMAT_MISMATCH", "DUPLICATE", "NOT_READY", "FULL", "AHEAD"}


class Chance:
    """Draws packets, most of which meet in one block."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def usually(self, value: int, *others: int, chance: float = 0.05) -> int:
        return int(self._random.choice(others)) if self._random.random() < chance else value

    def below(self, end: int) -> int:
        return int(self._random.integers(end))

    def header(self, number: int, generation: int, lanes: int) -> KofnHeader:
        """Return the header of packet `number`, mostly in these lanes."""
        kind, lanes = self.usually(Kind.CONTRIBUTE, Kind.PULL), self.usually(lanes, 0, 2, 3, 4, chance=0.03)
        other_words = 10 if lanes == Lanes.VOTES else 2  # BMv2 lets no packet grow by more than two words
        return KofnHeader(
            kind=kind,
            job=1,
            worker=self.below(HOSTS),
            recipient=self.usually(EVERYONE, *range(HOSTS)),
            lanes=lanes,
            words=self.usually(1, other_words, chance=0.03),
            k=self.usually(0, HOSTS, HOSTS + 3, 2**16 - 1),
            generation=generation,
            iteration=number // EACH + self.usually(1, 2, 3),
            block=self.usually(1, 0, 2),
            slot=self.usually(0, 1, 2),
            scale=self.usually(0, -1, chance=0.03),
            count=1 if kind == Kind.PULL else self.below(2),
            part=self.below(PARTS),
            weight=self.usually(1 + self.below(WEIGHT_MAX), 1, WEIGHT_MAX),
        )

    def values(self, words: int) -> bytes:
        return self._random.bytes(256 * words)


@pytest.mark.parametrize("lanes", [Lanes.BITS_16, Lanes.VOTES])
def test_real_switch_answers_like_the_model(plane: DataPlane, lanes: int) -> None:
    plane.install(k=HOSTS)
    Mirror.plane = plane
    Mirror.kinds.clear()

    @settings(max_examples=max(EXAMPLES, settings().max_examples // 50), suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        chance = Chance(seed)
        rules = Mirror(workers=HOSTS, k=2, slots=2)
        for number in range(PACKETS):
            rules.k = chance.usually(rules.k, *range(1, HOSTS + 1))
            header = chance.header(number, rules.generation, lanes)
            rules.handle(header, chance.values(header.words))

    check()
    verdicts = Counter(plane.count())
    print(dict(Mirror.kinds), dict(verdicts))
    assert verdicts.keys() == SEEN
