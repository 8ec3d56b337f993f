"""Limits of packet copies, and the settings for them: sessions, the drop port, priorities.

suite/programs/copies.stf tests the copies themselves; `op` and `session` of its program are the first bytes of a
packet.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import EntryNotFound, InvalidEntry, PortError
from kofn_switch.state.entries import CloneSession, Replica

PROGRAM = (Path(__file__).parent / "suite" / "programs" / "copies.json").read_bytes()
CLONE, CLONED_BY_EACH, TRUNCATED, TO_511, DROPPED, PRIORITY, GROWS = 1, 6, 7, 14, 3, 11, 0x27
REST = bytes(range(10))


@pytest.fixture(scope="module")
def loaded() -> Engine:
    engine = Engine({})
    engine.load(PROGRAM)
    return engine


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    yield loaded
    for session in loaded.sessions():
        loaded.delete_session(session)


def packet(op: int, session: int = 5, rest: bytes = REST) -> bytes:
    return bytes([op, session]) + bytes(16) + rest


def ports(engine: Engine, data: bytes) -> list[int]:
    return [port for port, _ in engine.inject(1, data)]


def dropped(engine: Engine, reason: str) -> int:
    return engine.stats().drops[reason]


def to(*replicas: int) -> tuple[Replica, ...]:
    return tuple(Replica(port=port) for port in replicas)


def test_sessions_are_created_replaced_and_removed(engine: Engine) -> None:
    assert ports(engine, packet(CLONE)) == [1]
    engine.set_session(5, CloneSession(replicas=to(2, 3, 2)))
    assert ports(engine, packet(CLONE)) == [2, 3, 2, 1]
    engine.set_session(5, CloneSession(group=9))
    assert ports(engine, packet(CLONE)) == [1], "a clone to an unknown group must be dropped"
    engine.set_group(9, to(4, 4))
    assert ports(engine, packet(CLONE)) == [4, 4, 1]
    engine.delete_group(9)
    assert ports(engine, packet(CLONE)) == [1]
    assert engine.sessions() == {5: CloneSession(group=9)}
    engine.delete_session(5)
    assert engine.sessions() == {}
    with pytest.raises(EntryNotFound, match="there is no clone session 5"):
        engine.delete_session(5)


def test_session_truncates_its_clones(engine: Engine) -> None:
    for length in (1, 17, 18, 20, 28, 99):
        engine.set_session(5, CloneSession(replicas=to(2, 3), length=length))
        sent = engine.inject(1, packet(CLONE))
        assert [(port, len(data)) for port, data in sent] == [(2, min(length, 28)), (3, min(length, 28)), (1, 28)]
        sent = engine.inject(1, packet(0x20))  # in egress
        assert [(port, len(data)) for port, data in sent] == [(1, 28), (2, min(length, 28)), (3, min(length, 28))]


@pytest.mark.parametrize(
    ("number", "session", "words"),
    [
        (1 << 15, CloneSession(), "clone session 32768 is not in 0..32767"),
        (5, CloneSession(replicas=to(1), group=2), "clone session 5 must not have both a multicast group and replicas"),
        (5, CloneSession(group=1 << 16), "group must be 0..65535"),
        (5, CloneSession(length=-1), "length 0..4294967295"),
        (5, CloneSession(replicas=to(512)), "port 0..511"),
    ],
)
def test_wrong_sessions_are_refused(engine: Engine, number: int, session: CloneSession, words: str) -> None:
    with pytest.raises(InvalidEntry, match=words):
        engine.set_session(number, session)


def test_loading_forgets_sessions(engine: Engine) -> None:
    engine.set_session(5, CloneSession(replicas=to(2)))
    engine.load(PROGRAM)
    assert engine.sessions() == {}
    assert ports(engine, packet(CLONE)) == [1]


@pytest.mark.parametrize("op", [15, 0x29], ids=["resubmitted", "recirculated"])
def test_endless_packet_is_dropped(engine: Engine, op: int) -> None:
    before = dropped(engine, "too many passes")
    assert ports(engine, packet(op)) == []
    assert dropped(engine, "too many passes") == before + 1
    assert ports(engine, packet(0)) == [1]


def test_removed_headers_are_not_left_to_copies(engine: Engine) -> None:
    engine.set_session(5, CloneSession(replicas=to(2)))
    assert [(port, data[18:27]) for port, data in engine.inject(1, packet(16))] == [(2, bytes(9)), (1, bytes(9))]


def test_copies_beyond_the_queue_are_dropped(engine: Engine) -> None:
    """Each of 40 clones is cloned 40 times, and each of these 40 times as long as the queue has room."""
    engine.set_session(5, CloneSession(replicas=to(*range(2, 42))))
    before = dropped(engine, "copy queue full")
    sent = len(engine.inject(1, packet(0x26)))
    lost = dropped(engine, "copy queue full") - before
    assert 1600 - 1024 <= lost < 1600
    assert sent == 1 + 40 + 1600 + 40 * (1600 - lost)
    assert ports(engine, packet(0)) == [1]


def test_packet_that_grows_too_long_is_dropped(engine: Engine) -> None:
    room = (1 << 17) - 18
    assert len(engine.inject(1, packet(GROWS, rest=bytes(room - 16)))[0][1]) == 18 + room
    before = dropped(engine, "received too long")
    assert ports(engine, packet(GROWS, rest=bytes(room - 15))) == []
    assert dropped(engine, "received too long") == before + 1


def test_drop_port_can_be_changed() -> None:
    engine = Engine({}, drop_port=1, priority_queues=2)
    engine.load(PROGRAM)
    engine.set_session(5, CloneSession(replicas=to(2)))
    assert ports(engine, packet(0)) == [], "port 1, to which plain packets go, is the drop port"
    assert ports(engine, packet(TO_511)) == [511]
    assert ports(engine, packet(DROPPED)) == [2], "mark_to_drop must use the drop port, so that only the clone is sent"
    assert dropped(engine, "ingress") == 2
    assert dropped(engine, "priority") == 0
    assert ports(engine, packet(PRIORITY)) == []
    assert dropped(engine, "ingress") == 3, "the packet was dropped in ingress, and not for its priority"


def test_ports_and_the_drop_port_differ() -> None:
    with pytest.raises(PortError, match="port 7 is the port that drops"):
        Engine({7: "x"}, drop_port=7)
    with pytest.raises(PortError, match=r"port 512 is not in 0\.\.511"):
        Engine({}, drop_port=512)
