"""Random programs and packets have the same effects natively, in the reference, and (some of them) on BMv2."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.switch.reference import ReferenceEngine
from tests.switch.suite.bmv2 import running
from tests.switch.suite.random_programs.compare import differences, sent
from tests.switch.suite.random_programs.p4info import p4info_of
from tests.switch.suite.random_programs.program import RandomProgram
from tests.targets import TARGETS

NIGHTLY = os.environ.get("KOFN_NIGHTLY") == "1"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if NIGHTLY else 120)]
PACKETS = st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=150)), max_size=10)
PROGRAMS = st.builds(
    RandomProgram,
    seed=st.integers(0, 2**32 - 1),
    states=st.integers(1, 5),
    nodes=st.integers(1, 9),
    egress_nodes=st.integers(0, 3),
    actions=st.integers(1, 5),
    wide=st.sampled_from((32, 64, 256)),
    copies=st.booleans(),
)
BMV2 = [target for target in TARGETS if target != "embedded"]  # with its marks


@settings(max_examples=1000 if NIGHTLY else 6)
@given(program=PROGRAMS, packets=PACKETS)
def test_native_code_equals_the_reference(program: RandomProgram, packets: list[tuple[int, bytes]]) -> None:
    assert differences(program, [*program.packets(20), *packets]) == []


@pytest.mark.parametrize("_target", BMV2)
def test_reference_equals_bmv2(_target: str) -> None:
    with running() as bmv2:
        switch: Any = bmv2
        for seed in range(300 if NIGHTLY else 8):
            program = RandomProgram(seed=seed, tame=True)
            reference = ReferenceEngine()
            switch.info = p4info_of(program.document)
            for executor in (reference, switch):
                program.prepare(executor)
            for packet in program.packets(20):
                # sorted: BMv2's threads may let a clone overtake its original
                assert sorted(sent(switch, packet)) == sorted(sent(reference, packet)), (seed, packet)
