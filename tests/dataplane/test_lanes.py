"""Sums through a switch equal NumPy's, for lanes of every width and any number of workers: no lane carries."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kofn_common.wire.packet import WIDTHS, WORD_BYTES, Kind, KofnHeader, bit_of
from kofn_common.wire.sizes import PARTS
from kofn_host.kernels.lanes import VOTES, code_of, pack, unpack
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import GENERATION, frame, parse

pytestmark = pytest.mark.root

EXAMPLES = 6
WORKERS_MAX = 64


@st.composite
def addends(draw: st.DrawFn, width: int, signed: bool) -> np.ndarray:
    """Draw the lanes of one word for up to 64 workers: each within its share of the room, some at its bounds."""
    room = min(2 ** (width - signed), 2**31) - 1
    workers = draw(st.integers(1, min(WORKERS_MAX, room)))
    largest, least = room // workers, -((room + 1) // workers) if signed else 0
    random, lanes = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), WORD_BYTES * 8 // width
    values = random.integers(least, largest + 1, (workers, lanes))
    ends = random.integers(0, 4, lanes)
    values[:, ends == 0], values[:, ends == 1] = least, largest
    return values


def sent(values: np.ndarray, worker: int, block: int, width: int) -> tuple[int, bytes]:
    """Return port and frame of a worker's lanes; the block closes when all have contributed."""
    header = KofnHeader(
        job=1,
        worker=worker,
        part=worker % PARTS,
        lanes=code_of(width),
        words=1,
        k=len(values),
        generation=GENERATION,
        block=block,
        slot=block,
    )
    port = worker % HOSTS + 1
    return port, frame(port, header, pack(values[worker].astype(np.int32), width))


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "votes"])
@pytest.mark.parametrize("width", [width for width in WIDTHS if width != VOTES])
def test_sums_of_any_number_of_workers_are_exact(plane: DataPlane, width: int, signed: bool) -> None:
    plane.install(k=1)
    plane.crowd(WORKERS_MAX)
    blocks = iter(range(4096))

    @settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
    @given(addends(width, signed))
    def check(values: np.ndarray) -> None:
        block, workers = next(blocks), len(values)
        for worker in range(workers):
            received = plane.lab.exchange(*sent(values, worker, block, width))
            assert bool(received) == (worker == workers - 1), "only the last contribution closes the block"
        answer = parse(received[1][0])
        assert (answer.kind, answer.header.count) == (Kind.RESULT, workers)
        assert answer.header.members == sum(bit_of(worker, worker % PARTS) for worker in range(workers))
        lanes = unpack(answer.values.astype(">i4").tobytes(), width, signed=signed)
        assert np.array_equal(lanes, values.sum(axis=0))

    check()
