"""SwitchML: its slot in every interleaving, its program against algorithm 3, the paper's losses, scales, trainings."""

import json
import os
import random
from typing import Any

import numpy as np
import pytest

from examples.protocols.switchml import HEADER, LANES, FloatSpeaker, Pool, SwitchmlPlane
from kofn_common.config.faults import FaultSection
from kofn_common.config.job import JobSection
from tests.examples.switchml_explorer import SwitchModel, World, explore
from tests.run.real_run import RealRun
from tests.system.collectives.protocols import EXAMPLES, protocol_crew, sockets
from tests.system.collectives.switched import HOSTS
from tests.targets import TARGETS

KIND = "switchml:Switchml"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "slots", "budget"),
    [
        (3, 2, {"loss": 2}),
        pytest.param(3, 2, {"loss": 1, "duplicate": 1, "premature": 1}, marks=pytest.mark.long),
        pytest.param(3, 2, {"loss": 1, "duplicate": 1}, marks=pytest.mark.long),
        pytest.param(3, 1, {"loss": 2, "duplicate": 2, "premature": 1}, marks=pytest.mark.long),
        pytest.param(3, 2, {"loss": 2, "duplicate": 1, "premature": 1}, marks=pytest.mark.long),
    ],
)
def test_every_sum_is_right_and_every_call_ends_in_every_interleaving(
    blocks: int, slots: int, budget: dict[str, int]
) -> None:
    states, wrong, stuck = explore(World.begin(blocks, slots, budget))
    assert states > 500
    assert (wrong, stuck) == ("", 0)


@pytest.mark.parametrize("cause", ["duplicate", "premature"])
def test_copy_that_another_packet_overtakes_enters_a_later_sum(cause: str) -> None:
    """Algorithm 3 needs links that keep the order: a version is one bit, the same for a packet of two blocks ago."""
    _, wrong, _ = explore(World.begin(3, 1, {cause: 1}, ordered=False))
    assert "block 2: 18" in wrong, "16 + 32 is right; the copy of block 0 is in place of block 2"


def test_explorer_finds_a_version_that_is_freed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = SwitchModel.receive

    def forgetful(self: SwitchModel, packet: bytes) -> Any:
        answer = receive(self, packet)
        self.seen = {one for one in self.seen if answer is None or one[:2] != HEADER.unpack_from(packet)[2:4]}
        return answer

    monkeypatch.setattr(SwitchModel, "receive", forgetful)
    _, wrong, stuck = explore(World.begin(3, 1, {"premature": 1}))
    assert wrong or stuck


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("target", TARGETS)
def test_program_is_algorithm_3(target: str) -> None:
    """Random packets of three workers, through one port, get the model's answers in its order."""
    draw, model = random.Random(3), SwitchModel(HOSTS)
    with sockets(target, SwitchmlPlane(), JobSection(workers=HOSTS, slots=4)) as opened:
        everyone, own = [], 0
        for number in range(400):
            header = HEADER.pack(1, draw.randrange(HOSTS), draw.randrange(2), draw.randrange(4), number, 0)
            lanes = np.random.default_rng(number).integers(0, 2**32, LANES, dtype=np.uint32)
            packet = header + lanes.astype(">u4").tobytes()
            opened[0].send(packet)
            if (answer := model.receive(packet)) is not None:
                assert opened[0].recv(1 << 16) == answer[0]
                own += 1
                everyone += [answer[0]] if answer[1] else []
        assert own > len(everyone) > 20
        for other in opened[1:]:
            assert [other.recv(1 << 16) for _ in everyone] == everyone


@pytest.mark.root
@needs_root
def test_losses_of_the_papers_example_are_repaired() -> None:
    """Its figure of three workers: the update of the third one is lost on the way up, a result of the first one on the
    way down. The first one's repetition is answered to it alone, while the others are in the slot's other version."""
    up = FaultSection(workers=(2,), direction="send", packets=(1,), drop=1.0)
    down = FaultSection(workers=(0,), direction="receive", packets=(1,), drop=1.0)
    every = np.arange(3 * 6 * LANES, dtype=np.int32).reshape(3, -1)
    with protocol_crew(KIND, "embedded", up, down, slots=2, rto_ms=100.0) as team:
        outcomes = team.run(lambda one: one.all_reduce(every[one.rank]).wait(30))
        for outcome in outcomes:
            assert np.array_equal(outcome.value, every.sum(axis=0))
        assert outcomes[0].counts["retransmissions"] and outcomes[2].counts["retransmissions"]


def test_float_sums_are_within_the_bound_of_the_scale() -> None:
    """n values of at most 2**m, rounded at the factor: an error of at most n / 2 steps, and no overflow."""
    for workers in (2, 3, 8):
        draw = np.random.default_rng(workers)
        rows = [draw.normal(size=(5, LANES)) * 10.0 ** draw.integers(-9, 9, (5, 1)) for _ in range(workers)]
        rows = [np.where(np.abs(row) == np.abs(row).max(), np.sign(row) * 2**20, row) for row in rows]
        speakers = [FloatSpeaker(row, Pool(1, rank, 8, 1.0), workers) for rank, row in enumerate(rows)]
        for block in range(5):
            most = max(one.exponent(block) for one in speakers)
            lanes = [np.frombuffer(one.values(block, most), ">i4").astype(np.int64) for one in speakers]
            total = np.sum(lanes, axis=0)
            assert np.abs(total).max() < 2**31
            step = 1 / speakers[0].scales[block]
            assert np.abs(total * step - np.sum([row[block] for row in rows], axis=0)).max() <= workers / 2 * step


@pytest.mark.root
@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("drop", [pytest.param(0.0, marks=pytest.mark.long), 0.01])
def test_digits_reach_95_percent_with_identical_replicas(tmp_path: Any, target: str, drop: float) -> None:
    fault = f"[[fault]]\ndrop = {drop}\n" if drop else ""
    config = f'[run]\ntarget = 0.95\ntrials = ["all"]\n[job]\ncollective = "{KIND}"\nmodules = "{EXAMPLES}"\n{fault}'
    with RealRun(tmp_path, "--json", "--target", target, config=config) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    (trial,) = json.loads(run.stdout.read_text())["trials"]
    assert trial["best_accuracy"] >= 0.95
    assert trial["identity_error"] is None
    assert trial["retransmissions"] > 0 or not drop
