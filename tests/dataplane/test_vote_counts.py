"""kofn's program in the embedded switch counts votes as NumPy does, for every number of workers, count and tie."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kofn_common.wire.packet import (
    FRAME_BYTES,
    HEADER_BYTES,
    WORD_BYTES,
    Kind,
    KofnHeader,
    Lanes,
    decode_header,
    encode,
)
from kofn_common.wire.sizes import VOTE_WORDS
from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Entry, Exact, Replica
from tests.host.protocol.specification.slot_model import count_words

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "p4src" / "build" / "kofn.json"
PORTS = (1, 2)


def insert(engine: Engine, table: str, key: tuple[int, ...], action: str, *parameters: int) -> None:
    match = tuple(Exact(value=value) for value in key)
    engine.insert(Entry(table=table, key=match, action=action, parameters=parameters))


@cache
def engine() -> Engine:
    """Return a switch on which job n has n workers, which all send from port 1."""
    engine = Engine({})
    engine.load(PROGRAM.read_bytes())
    engine.set_group(1, [Replica(port=port) for port in PORTS])
    insert(engine, "ingress.admission.lanes", (Lanes.VOTES,), "ingress.admission.set_lanes", 0)
    for workers in range(1, 65):
        insert(
            engine,
            "ingress.admission.jobs",
            (workers,),
            "ingress.admission.set_job",
            workers,
            1,
            0,
            1023,
            1,
            workers,
            0,
        )
        for worker in range(workers):
            insert(engine, "ingress.admission.members", (1, workers, worker), "ingress.admission.admit_host")
        for port in PORTS:
            insert(engine, "egress.deliver.hosts", (port, workers), "egress.deliver.to_host", port, port, 0, port - 1)
    return engine


def contribute(header: KofnHeader, values: bytes) -> list[tuple[KofnHeader, bytes]]:
    """Send a contribution and return the packets at the ports."""
    datagram = encode(header, values)
    lengths = (28 + len(datagram)).to_bytes(2, "big"), (8 + len(datagram)).to_bytes(2, "big")
    ip = b"\x45\0" + lengths[0] + bytes.fromhex("0000 0000 4011 0000 0a000001 0a0000fe")
    total = sum(np.frombuffer(ip, ">u2").tolist())
    ip = ip[:10] + (0xFFFF - total % 0xFFFF).to_bytes(2, "big") + ip[12:]
    frame = bytes(12) + b"\x08\0" + ip + (19278).to_bytes(2, "big") * 2 + lengths[1] + bytes(2) + datagram
    found = []
    for _, answer in engine().inject(1, frame):
        assert int.from_bytes(answer[16:18], "big") == len(answer) - 14
        assert int.from_bytes(answer[38:40], "big") == len(answer) - 34
        body = answer[FRAME_BYTES:]
        found.append((decode_header(body), body[HEADER_BYTES:]))
    return found


def votes_of(workers: int, words: int) -> np.ndarray:
    """Return votes, shape (workers, elements), in which every count occurs."""
    random, elements = np.random.default_rng(workers), words * WORD_BYTES * 8
    return np.arange(workers)[:, None] < random.integers(0, workers + 1, elements)


@pytest.mark.parametrize("workers", range(1, 65))
def test_votes_of_any_number_of_workers_are_counted(workers: int) -> None:
    planes = workers.bit_length()
    for block, words in enumerate((1, VOTE_WORDS, 6)):
        votes = votes_of(workers, min(words, VOTE_WORDS))
        header = KofnHeader(job=workers, lanes=Lanes.VOTES, words=words, generation=1, iteration=workers, block=block)
        for worker, bits in enumerate(votes):
            values = np.packbits(bits).tobytes().ljust(words * WORD_BYTES, b"\x5a")
            answers = contribute(header._replace(worker=worker, slot=block), values)
        late = contribute(header._replace(worker=0, slot=block), bytes(words * WORD_BYTES))
        assert [answer.kind for answer, _ in answers + late] == [Kind.RESULT, Kind.RESULT, Kind.LATE]
        for answer, sums in answers + late:
            assert (answer.count, answer.members, answer.lanes) == (workers, 2**workers - 1, Lanes.VOTES)
            found = np.unpackbits(np.frombuffer(sums, np.uint8)).astype(np.int64)
            assert answer.words == count_words(words, planes)
            counts = found[: planes * votes.shape[1]].reshape(planes, -1) << np.arange(planes)[:, None]
            assert np.array_equal(counts.sum(axis=0), votes.sum(axis=0))
