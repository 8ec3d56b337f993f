"""Tables of every kind and the rules of the pipeline, through programs/rules.p4; its JSON is committed."""

import binascii
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import (
    EntryExists,
    EntryNotFound,
    InvalidEntry,
    NoProgram,
    ProgramError,
    TableFull,
    UnknownObject,
)
from kofn_switch.state.entries import Count, Digest, Entry, Exact, Key, Lpm, Optional, Range, Replica, Ternary

PROGRAM = (Path(__file__).parent / "programs" / "rules.json").read_bytes()
LENGTH = 1 + 4 + 4 + 16


@dataclass(frozen=True, kw_only=True)
class Answer:
    op: int
    value: int
    result: int
    wide: int
    rest: bytes


@pytest.fixture
def engine() -> Engine:
    engine = Engine({})
    engine.load(PROGRAM)
    return engine


def request(op: int, value: int = 0, wide: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack(">BII", op, value, 0) + wide.to_bytes(16, "big") + rest


def ask(engine: Engine, op: int, value: int = 0, wide: int = 0, rest: bytes = b"") -> dict[int, Answer]:
    return {port: answer(data) for port, data in engine.inject(7, request(op, value, wide, rest))}


def answer(data: bytes) -> Answer:
    op, value, result = struct.unpack(">BII", data[:9])
    wide = int.from_bytes(data[9:LENGTH], "big")
    return Answer(op=op, value=value, result=result, wide=wide, rest=data[LENGTH:])


def entry(table: str, key: Key, result: int, priority: int = 0) -> Entry:
    return Entry(table=f"ingress.{table}", key=key, priority=priority, action="ingress.result", parameters=(result,))


def exact(value: int, wide: int) -> Key:
    return (Exact(value=value), Exact(value=wide))


BIG = (1 << 127) + 5


def test_exact_table_matches_whole_keys(engine: Engine) -> None:
    engine.insert(entry("by_exact", exact(5, BIG), 50))
    assert ask(engine, 1, 5, BIG)[1].result == 50
    assert ask(engine, 1, 5, BIG)[1].op == 0x81
    assert ask(engine, 1, 5, 5)[1].result == 1, "the lookup must miss"
    assert ask(engine, 1, 5, 5)[1].op == 1
    engine.modify(entry("by_exact", exact(5, BIG), 51))
    assert ask(engine, 1, 5, BIG)[1].result == 51
    engine.delete("ingress.by_exact", exact(5, BIG))
    assert ask(engine, 1, 5, BIG)[1].result == 1


def test_table_has_its_size_and_reports_errors(engine: Engine) -> None:
    for value in range(4):
        engine.insert(entry("by_exact", exact(value, 0), value + 10))
    with pytest.raises(TableFull, match=r"ingress\.by_exact is full: 4"):
        engine.insert(entry("by_exact", exact(9, 0), 1))
    with pytest.raises(EntryExists, match="0x3"):
        engine.insert(entry("by_exact", exact(3, 0), 1))
    engine.delete("ingress.by_exact", exact(2, 0))
    assert [ask(engine, 1, value)[1].result for value in range(4)] == [10, 11, 1, 13]
    engine.insert(entry("by_exact", exact(9, 0), 19))
    assert ask(engine, 1, 9)[1].result == 19
    assert [one.key for one in engine.entries("ingress.by_exact")] == [exact(value, 0) for value in (0, 1, 9, 3)]
    with pytest.raises(EntryNotFound):
        engine.delete("ingress.by_exact", exact(2, 0))
    with pytest.raises(EntryNotFound):
        engine.modify(entry("by_exact", exact(2, 0), 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry("by_exact", (Exact(value=1),), 1), "not 1 fields"),
        (entry("by_exact", exact(1 << 32, 0), 1), r"hdr\.request\.value .*bit<32>"),
        (entry("by_exact", exact(1, 1), 1, priority=3), "no priority"),
        (entry("by_exact", (Exact(value=1), Lpm(value=0, prefix_length=0)), 1), "matched exact, not lpm"),
        (entry("by_exact", exact(1, 1), 1 << 32), "parameter value .*bit<32>"),
        (entry("by_range", (Range(low=3, high=2), Exact(value=1)), 1, priority=1), "empty range"),
        (entry("by_range", (Range(low=2, high=3), Exact(value=1)), 1), "priority above 0"),
        (entry("by_lpm", (Lpm(value=1, prefix_length=8),), 1), "outside its mask"),
        (entry("by_lpm", (Lpm(value=0, prefix_length=33),), 1), r"0\.\.32"),
        (entry("constant", (Ternary(value=0, mask=0),), 1, priority=1), "const entries"),
        (Entry(table="ingress.by_lpm", key=(), action="ingress.leave"), "not 0 fields"),
        (Entry(table="ingress.by_lpm", key=(Lpm(value=0, prefix_length=0),), action="ingress.leave"), "has no action"),
        (Entry(table="ingress.by_exact", key=exact(1, 1), action="ingress.result"), "takes .value: bit<32>."),
    ],
)
def test_invalid_entries_are_refused(engine: Engine, bad: Entry, message: str) -> None:
    with pytest.raises(InvalidEntry, match=message):
        engine.insert(bad)


def test_unknown_names_list_the_choices(engine: Engine) -> None:
    with pytest.raises(UnknownObject, match=r"no table ingress\.nothing; it has ingress\.by_exact"):
        engine.entries("ingress.nothing")
    with pytest.raises(UnknownObject, match=r"it has ingress\.cells, ingress\.wides"):
        engine.read_register("cells", 0)
    with pytest.raises(InvalidEntry, match=r"0\.\.3"):
        engine.read_register("ingress.cells", 4)
    with pytest.raises(NoProgram):
        Engine({}).entries("t")


def test_default_actions_run_on_a_miss(engine: Engine) -> None:
    assert engine.default("ingress.by_exact") == ("ingress.result", (1,))
    engine.set_default("ingress.by_exact", "ingress.result", (9,))
    assert ask(engine, 1)[1].result == 9
    engine.set_default("ingress.by_exact", "ingress.drop")
    assert ask(engine, 1) == {}
    engine.reset_default("ingress.by_exact")
    assert ask(engine, 1)[1].result == 1
    with pytest.raises(InvalidEntry, match="const"):
        engine.set_default("ingress.by_lpm", "ingress.result", (1,))


def test_lpm_takes_the_longest(engine: Engine) -> None:
    for value, length, result in ((0x0A000000, 8, 1), (0x0A0B0000, 16, 2), (0, 0, 3), (0x0A0B0C0D, 32, 4)):
        engine.insert(entry("by_lpm", (Lpm(value=value, prefix_length=length),), result))
    asked = (0x0A0B0C0D, 0x0A0B0C0E, 0x0A0C0000, 0x0B000000)
    assert [ask(engine, 2, value)[1].result for value in asked] == [4, 2, 1, 3]
    engine.delete("ingress.by_lpm", (Lpm(value=0x0A0B0000, prefix_length=16),))
    assert ask(engine, 2, 0x0A0B0C0E)[1].result == 1


def test_ternary_takes_the_highest_priority(engine: Engine) -> None:
    every, any_wide = Ternary(value=0, mask=0), Ternary(value=0, mask=0)
    odd = Ternary(value=1, mask=1)
    engine.insert(entry("by_ternary", (every, any_wide), 1, priority=1))
    engine.insert(entry("by_ternary", (odd, any_wide), 2, priority=10))
    engine.insert(entry("by_ternary", (every, Ternary(value=1 << 127, mask=1 << 127)), 3, priority=5))
    assert [ask(engine, 3, v, w)[1].result for v, w in ((0, 0), (1, 0), (1, BIG), (2, BIG))] == [1, 2, 2, 3]
    engine.delete("ingress.by_ternary", (odd, any_wide), 10)
    assert ask(engine, 3, 1, BIG)[1].result == 3


def test_range_optional_and_const_entries_match(engine: Engine) -> None:
    engine.insert(entry("by_range", (Range(low=10, high=20), Exact(value=4)), 1, priority=1))
    engine.insert(entry("by_range", (Range(low=20, high=0xFFFFFFFF), Exact(value=4)), 2, priority=2))
    assert [ask(engine, 4, v)[1].result for v in (9, 10, 19, 20, 0xFFFFFFFF)] == [0, 1, 1, 2, 2]
    engine.insert(entry("by_optional", (Optional(value=4), Optional(value=None)), 1, priority=2))
    engine.insert(entry("by_optional", (Optional(value=None), Optional(value=BIG)), 2, priority=1))
    assert [ask(engine, 5, v, w)[1].result for v, w in ((4, 0), (4, BIG), (5, BIG), (5, 0))] == [1, 1, 2, 0]
    assert [ask(engine, 6, v)[1].result for v in (0x10, 0x20, 0x21)] == [1, 2, 3]
    assert len(engine.entries("ingress.constant")) == 3


def test_action_run_and_exit_control_the_flow(engine: Engine) -> None:
    one, two = (Exact(value=1),), (Exact(value=2),)
    engine.insert(Entry(table="ingress.by_action", key=one, action="ingress.drop"))
    engine.insert(Entry(table="ingress.by_action", key=two, action="ingress.wide_result", parameters=(BIG,)))
    engine.insert(Entry(table="ingress.by_exact", key=exact(3, 0), action="ingress.leave"))
    assert set(ask(engine, 7, 1)) == {2}
    assert ask(engine, 7, 2)[3].wide == BIG
    assert set(ask(engine, 7, 9)) == {4}
    left = ask(engine, 1, 3)[1]
    assert (left.result, left.value, left.op) == (77, 3, 1), "no statement after exit may run"


def test_direct_counters_count_hits(engine: Engine) -> None:
    engine.insert(entry("by_exact", exact(5, 0), 50))
    for rest in (b"", b"12345"):
        ask(engine, 1, 5, 0, rest)
    ask(engine, 1, 6)
    assert engine.count("ingress.by_exact", exact(5, 0)) == Count(packets=2, bytes=2 * LENGTH + 5)
    assert engine.default_count("ingress.by_exact") == Count(packets=1, bytes=LENGTH)
    engine.modify(entry("by_exact", exact(5, 0), 51))
    engine.set_count("ingress.by_exact", exact(5, 0), 0, Count(packets=7, bytes=9))
    assert engine.count("ingress.by_exact", exact(5, 0)) == Count(packets=7, bytes=9)
    with pytest.raises(InvalidEntry, match="no direct counter"):
        engine.default_count("ingress.by_lpm")


def test_registers_and_counters_out_of_range_have_no_effect(engine: Engine) -> None:
    ask(engine, 0x10, 3, 0x1ABC)
    ask(engine, 0x10, 4, 0xFFF)
    assert [engine.read_register("ingress.cells", i) for i in range(4)] == [0, 0, 0, 0xABC]
    assert [ask(engine, 0x11, i)[1].result for i in (3, 4, 0xFFFFFFFF)] == [0xABC, 0, 0]
    ask(engine, 0x12, 1, BIG)
    assert engine.read_register("ingress.wides", 1) == BIG
    assert [ask(engine, 0x13, i, 3)[1].wide for i in (1, 0, 2)] == [BIG, 0, 0]
    for index in (2, 3, 2):
        ask(engine, 0x14, index)
    assert engine.read_counter("ingress.counts", 2) == Count(packets=2, bytes=2 * LENGTH)
    engine.write_counter("ingress.counts", 2, Count(packets=0, bytes=0))
    assert engine.read_counter("ingress.counts", 2) == Count(packets=0, bytes=0)


def test_digest_has_the_fields_values(engine: Engine) -> None:
    ask(engine, 0x15, 6, BIG)
    assert engine.take_digests(0) == [Digest(name="seen_t", fields=(6, BIG, 7))]
    ask(engine, 0x15, 6, BIG)
    engine.load(PROGRAM)
    assert engine.take_digests(0) == [], "digests of the earlier program must be gone"


def test_multicast_copies_are_independent(engine: Engine) -> None:
    engine.set_group(3, [Replica(port=1, instance=11), Replica(port=2, instance=12), Replica(port=7, instance=13)])
    copies = ask(engine, 0x20, 3, 9, b"payload")
    assert set(copies) == {1, 2}, "egress must drop the copy to the ingress port"
    assert [copies[port].result for port in (1, 2)] == [5 << 16 | 11, 5 << 16 | 12]
    assert {copy.wide for copy in copies.values()} == {10}
    assert {copy.rest for copy in copies.values()} == {b"payload"}
    assert ask(engine, 0x20, 4) == {}
    assert engine.stats().drops["unknown group"] == 1
    assert engine.stats().drops["egress"] == 1
    engine.delete_group(3)
    with pytest.raises(EntryNotFound):
        engine.group(3)
    assert ask(engine, 0x20, 3) == {}


def test_thousands_of_copies_are_sent(engine: Engine) -> None:
    engine.set_group(1, [Replica(port=1, instance=number) for number in range(3000)])
    out = engine.inject(7, request(0x20, 1, 1, bytes(50)))
    assert [answer(data).result & 0xFFFF for _, data in out] == list(range(3000))
    assert {answer(data).wide for _, data in out} == {2}


def test_dropped_packets_and_ports_follow_the_program(engine: Engine) -> None:
    assert ask(engine, 0x21) == {}, "mark_to_drop must clear the multicast group"
    assert set(ask(engine, 0x22)) == {5}, "a port that is set after mark_to_drop must win"
    assert set(ask(engine, 0x23, 0)) == {0}
    assert ask(engine, 0x23, 511) == {}
    assert engine.stats().drops["ingress"] == 2


def test_headers_are_added_and_removed(engine: Engine) -> None:
    added = ask(engine, 0x24, rest=b"ab")[6]
    assert (added.rest, added.result) == (b"\0\0ab", LENGTH + 4)
    ask(engine, 0x50, rest=b"xyz")
    assert ask(engine, 0x25)[1].result == 0, "a field of an invalid header must not keep the last packet's value"
    assert ask(engine, 0x50, rest=b"xyz")[1].rest == b"z"


def test_stacks_are_pushed_and_popped(engine: Engine) -> None:
    three = bytes([0, 1, 0, 2, 1, 3])
    assert ask(engine, 0x41, rest=three + b"p")[1].rest == bytes([0, 2, 1, 3]) + b"p"
    assert ask(engine, 0x42, rest=three[2:] + b"p")[1].rest == bytes([0, 9, 0, 2, 1, 3]) + b"p"
    assert [ask(engine, 0x43, value, rest=three)[1].result for value in (0, 1, 2, 3, 1000)] == [1, 2, 3, 0, 0]


def test_parser_errors_keep_the_extracted_headers(engine: Engine) -> None:
    overflow = ask(engine, 0x43, rest=bytes([0, 1, 0, 2, 0, 3, 0, 4]))[1]
    assert (overflow.result, overflow.rest) == (100, bytes([0, 1, 0, 2, 0, 3, 0, 4]))
    short = ask(engine, 0x50, rest=b"x")[1]
    assert (short.result, short.rest) == (100, b"x")
    assert ask(engine, 0xFF)[1].result == 100
    assert engine.inject(7, b"abc") == [(1, b"abc")]


def test_hash_random_truncate_and_assert_follow_the_specification(engine: Engine) -> None:
    data = struct.pack(">I", 0x01020304)
    assert ask(engine, 0x26, 0x01020304)[1].result == binascii.crc32(data)
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    assert ask(engine, 0x27, 0x01020304)[1].result == 5 + crc % 100
    assert {ask(engine, 0x28)[1].result for _ in range(100)} == {10, 11, 12}
    assert engine.inject(7, request(0x29, 3, rest=b"abc")) == [(1, request(0x29, 4)[:3])]
    assert len(engine.inject(7, request(0x29, LENGTH + 2, rest=b"abc"))[0][1]) == LENGTH + 2
    assert set(ask(engine, 0x2A, 1)) == {1}
    assert ask(engine, 0x2A, 2) == {}
    assert engine.stats().drops["assertion failed"] == 1


def test_longest_packet_fits_the_controllers_ring() -> None:
    engine = Engine({}, cpu_port=255)
    engine.load(PROGRAM)
    engine.send(request(0x23, 255, rest=bytes(400_000)))
    engine.send(request(0x23, 255, rest=b"the next one"))
    assert engine.take_packet_ins(0) == [request(0x23, 256, rest=b"the next one")]
    assert engine.stats().drops["received too long"] == 1


def test_metadata_starts_as_zero(engine: Engine) -> None:
    assert [ask(engine, 0x60, value)[1].result for value in (1, 0, 1, 0)] == [5, 0, 5, 0]


def test_refused_program_leaves_the_old_one(engine: Engine) -> None:
    engine.insert(entry("by_exact", exact(5, 0), 50))
    with pytest.raises(ProgramError):
        engine.load(PROGRAM.replace(b'"op" : "register_write"', b'"op" : "register_melt"'))
    assert ask(engine, 1, 5)[1].result == 50
    engine.load(PROGRAM)
    assert ask(engine, 1, 5)[1].result == 1, "a load must reset everything"
