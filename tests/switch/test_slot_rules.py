"""The prototype of the data plane against NumPy, step by step."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Digest, Entry, Exact, Replica

PROGRAM = Path(__file__).parent / "programs" / "slot_rules.json"
CONTRIBUTE, PULL, RESULT, LATE, STALE, FORMAT_MISMATCH = range(6)
HEADER = ">BBBBBBHIIIHHQ"


@dataclass(frozen=True, kw_only=True)
class Answer:
    kind: int
    worker: int
    k: int
    iteration: int
    count: int
    members: int
    scale: int
    values: bytes

    @property
    def numbers(self) -> NDArray[np.int64]:
        return np.frombuffer(self.values, ">i4").astype(np.int64)


def packet(
    kind: int,
    worker: int,
    iteration: int,
    values: bytes,
    *,
    k: int = 0,
    scale: int = 7,
    lanes: int = 0,
) -> bytes:
    words = max(1, len(values) // 256)
    header = struct.pack(HEADER, 0x10 | kind, 1, worker, 255, lanes << 4, words, k, iteration, 0, 0, scale, 1, 0)
    body = header + values
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + len(body), 0, 0, 64, 17, 0, 0x0A000001, 0x0A0000FF)
    udp = struct.pack(">HHHH", 19278, 0x4B4E, 8 + len(body), 0)
    return b"\x02\0\0\0\0\xff" + b"\x02\0\0\0\0" + bytes([worker]) + b"\x08\0" + ip + udp + body


def read(data: bytes) -> Answer:
    f = struct.unpack(HEADER, data[42:74])
    return Answer(
        kind=f[0] & 15, worker=f[2], k=f[6], iteration=f[7], count=f[11], members=f[12], scale=f[10], values=data[74:]
    )


def high_bits(width: int) -> int:
    return int(("1" + "0" * (width - 1)) * (2048 // width), 2)


@pytest.fixture
def engine() -> Engine:
    engine = Engine({})
    engine.load(PROGRAM.read_bytes())
    engine.set_group(1, [Replica(port=0), Replica(port=1)])
    one = Exact(value=1)
    engine.insert(Entry(table="I.jobs", key=(one,), action="I.set_job", parameters=(2, 1, 0, 0xFFF)))
    for worker in (0, 1):
        me = Exact(value=worker)
        engine.insert(Entry(table="I.admit", key=(me, one, me), action="NoAction"))
        to = (0x020000000000 + worker, 0x0A000001 + worker, worker)
        engine.insert(Entry(table="E.deliver", key=(me, one), action="E.host", parameters=to))
    for code, width in enumerate((32, 16, 8, 4)):
        key = (Exact(value=code),)
        engine.insert(Entry(table="I.lanes", key=key, action="I.set_high", parameters=(high_bits(width),)))
    return engine


def send(engine: Engine, port: int, data: bytes) -> dict[int, Answer]:
    return {to: read(out) for to, out in engine.inject(port, data)}


@pytest.fixture
def values() -> list[NDArray[np.int64]]:
    random = np.random.default_rng(0)
    return [random.integers(-1_000_000, 1_000_000, 256) for _ in range(2)]


def as_bytes(values: NDArray[np.int64]) -> bytes:
    return values.astype(">i4").tobytes()


def test_script_of_packets_gives_the_expected_answers(engine: Engine, values: list[NDArray[np.int64]]) -> None:
    v = [as_bytes(one) for one in values]
    total = values[0] + values[1]
    assert send(engine, 0, packet(CONTRIBUTE, 0, 1, v[0])) == {}
    assert send(engine, 0, packet(CONTRIBUTE, 0, 1, v[0])) == {}, "a duplicate gets no answer"
    refused = send(engine, 1, packet(CONTRIBUTE, 1, 1, v[1], scale=9))
    assert {port: (a.kind, a.scale) for port, a in refused.items()} == {1: (FORMAT_MISMATCH, 7)}
    closed = send(engine, 1, packet(CONTRIBUTE, 1, 1, v[1]))
    assert sorted(closed) == [0, 1]
    for port, answer in closed.items():
        assert (answer.kind, answer.members, answer.count, answer.worker, answer.k) == (RESULT, 3, 2, port, 2)
        np.testing.assert_array_equal(answer.numbers, total)
    late = send(engine, 1, packet(PULL, 1, 1, bytes(1024)))[1]
    assert late.kind == LATE
    np.testing.assert_array_equal(late.numbers, total)
    late = send(engine, 1, packet(CONTRIBUTE, 1, 1, v[1]))[1]
    assert (late.kind, late.members) == (LATE, 3)
    alone = send(engine, 0, packet(CONTRIBUTE, 0, 2, v[0], k=1))
    assert {(a.kind, a.members) for a in alone.values()} == {(RESULT, 1)}
    np.testing.assert_array_equal(alone[1].numbers, values[0])
    late = send(engine, 1, packet(CONTRIBUTE, 1, 2, v[1]))[1]
    assert (late.kind, late.members) == (LATE, 1)
    assert send(engine, 1, packet(CONTRIBUTE, 1, 1, v[1]))[1].kind == STALE
    assert send(engine, 1, packet(CONTRIBUTE, 0, 3, v[1])) == {}, "worker 0 must not send from port 1"


@pytest.mark.slow
def test_fewer_words_and_truncated_packets_are_summed_or_dropped(
    engine: Engine, values: list[NDArray[np.int64]]
) -> None:
    v = [as_bytes(one) for one in values]
    send(engine, 0, packet(CONTRIBUTE, 0, 3, v[0][:256]))
    answer = send(engine, 1, packet(CONTRIBUTE, 1, 3, v[1][:256]))[0]
    np.testing.assert_array_equal(answer.numbers, (values[0] + values[1])[:64])
    send(engine, 0, packet(CONTRIBUTE, 0, 4, v[0])[:300])
    assert send(engine, 1, packet(CONTRIBUTE, 1, 4, v[1])) == {}, "a truncated packet must not count"
    answer = send(engine, 0, packet(CONTRIBUTE, 0, 4, v[0]))[1]
    np.testing.assert_array_equal(answer.numbers, values[0] + values[1])
    assert engine.read_counter("I.reasons", 0).packets == 1


@pytest.mark.parametrize(("lanes", "kind"), [(0, ">i4"), (1, ">i2"), (2, "i1")])
def test_lanes_of_every_width_are_summed(engine: Engine, lanes: int, kind: str) -> None:
    random = np.random.default_rng(lanes)
    size = np.dtype(kind).itemsize
    values = random.integers(-(1 << 6), 1 << 6, (2, 1024 // size)).astype(kind)
    send(engine, 0, packet(CONTRIBUTE, 0, 5, values[0].tobytes(), lanes=lanes))
    answer = send(engine, 1, packet(CONTRIBUTE, 1, 5, values[1].tobytes(), lanes=lanes))[0]
    np.testing.assert_array_equal(np.frombuffer(answer.values, kind), values[0] + values[1])


def test_digests_come_in_order(engine: Engine, values: list[NDArray[np.int64]]) -> None:
    for iteration in (1, 2, 3):
        send(engine, 0, packet(CONTRIBUTE, 0, iteration, as_bytes(values[0])))
    digests = engine.take_digests(0)
    assert [digest.name for digest in digests] == ["arrival_t"] * 3
    assert [digest.fields[:3] for digest in digests] == [(1, 0, 1), (2, 0, 2), (3, 0, 3)]
    times = [digest.fields[3] for digest in digests]
    assert times == sorted(times)
    assert engine.take_digests(0.01) == list[Digest]()


def test_checksum_is_renewed(engine: Engine, values: list[NDArray[np.int64]]) -> None:
    send(engine, 0, packet(CONTRIBUTE, 0, 1, as_bytes(values[0])))
    for _, data in engine.inject(1, packet(CONTRIBUTE, 1, 1, as_bytes(values[1]))):
        total = sum(struct.unpack(">10H", data[14:34]))
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_registers_can_be_read_and_written(engine: Engine, values: list[NDArray[np.int64]]) -> None:
    send(engine, 0, packet(CONTRIBUTE, 0, 1, as_bytes(values[0])))
    assert engine.read_register("I.epochs", 0) == 1 << 32
    assert engine.read_register("I.a0.sum", 0) == int.from_bytes(as_bytes(values[0])[:256], "big")
    engine.write_register("I.a0.sum", 0, 5)
    engine.write_register("I.states", 0, 0x0001_0001)
    late = send(engine, 1, packet(PULL, 1, 1, bytes(1024)))[1]
    assert int.from_bytes(late.values[:256], "big") == 5
