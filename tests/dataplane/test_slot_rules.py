"""Every rule of docs/reference/protocol.md, packet by packet, on the embedded switch and on BMv2
where it is installed.
"""

import numpy as np
import pytest
from scapy.compat import raw
from scapy.layers.inet import ICMP, IP, UDP, IPOption, fragment
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

from kofn_common.wire.packet import HEADER_BYTES, PORT, Flag, Kind, KofnHeader, encode
from kofn_common.wire.sizes import JOB_MAX, WEIGHT_MAX, WEIGHT_UNIT
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import GENERATION, Answer, contribution, frame, host_mac, parse, pull

pytestmark = pytest.mark.root

EXACT = JOB_MAX + 2
"""The id of the exact sums of job 1."""

VALUES = np.random.default_rng(0).integers(-(2**28), 2**28, (HOSTS, 256))


def exchange(plane: DataPlane, sent: tuple[int, bytes]) -> dict[int, Answer]:
    """Send a frame and return the answers by port; no port may get two."""
    received = plane.lab.exchange(*sent)
    assert all(len(frames) == 1 for frames in received.values())
    return {port: parse(frames[0]) for port, frames in received.items()}


def test_k_fastest_are_summed_and_all_get_the_result(plane: DataPlane) -> None:
    plane.install(k=3)
    assert exchange(plane, contribution(2, 1, 0, VALUES[2])) == {}
    assert exchange(plane, contribution(0, 1, 0, VALUES[0])) == {}
    answers = exchange(plane, contribution(3, 1, 0, VALUES[3]))
    assert answers.keys() == {1, 2, 3, 4}
    for port, answer in answers.items():
        h = answer.header
        assert (answer.kind, h.worker, h.members, h.count, h.k, h.scale) == (Kind.RESULT, port - 1, 0b1101, 3, 3, 7)
        assert np.array_equal(answer.values, VALUES[2] + VALUES[0] + VALUES[3])
        ether = answer.ether
        assert (ether.dst, ether[IP].dst, ether[IP].src) == (host_mac(port), f"10.0.0.{port}", "10.0.0.254")
        assert (ether[UDP].dport, ether[UDP].chksum) == (19278, 0)
        checksum = ether[IP].chksum
        del ether[IP].chksum
        assert Ether(bytes(ether))[IP].chksum == checksum, "the IPv4 checksum must be right"
    late = exchange(plane, contribution(1, 1, 0, VALUES[1]))
    assert late.keys() == {2}, "only the late sender is answered"
    assert (late[2].kind, late[2].header.members, late[2].header.count) == (Kind.LATE, 0b1101, 3)
    assert np.array_equal(late[2].values, answers[1].values), "a late packet does not touch the sum"


def test_duplicates_add_nothing(plane: DataPlane) -> None:
    plane.install(k=2)
    for _ in range(3):
        assert exchange(plane, contribution(0, 1, 0, VALUES[0])) == {}
    answers = exchange(plane, contribution(1, 1, 0, VALUES[1]))
    assert np.array_equal(answers[1].values, VALUES[0] + VALUES[1])
    again = exchange(plane, contribution(0, 1, 0, VALUES[0]))
    assert (again[1].kind, again[1].header.count) == (Kind.LATE, 2)
    assert plane.count() == {"OPENED": 1, "DUPLICATE": 2, "CLOSED": 1, "LATE": 1}


def test_newer_iteration_takes_the_slot_and_older_ones_are_stale(plane: DataPlane) -> None:
    plane.install(k=2)
    exchange(plane, contribution(0, 1, 0, VALUES[0]))
    exchange(plane, contribution(1, 2, 0, VALUES[1]))
    stale = exchange(plane, contribution(0, 1, 0, VALUES[0]))
    assert stale[1].kind == Kind.STALE
    stale = exchange(plane, pull(3, 1, 0, 4))
    assert stale[4].kind == Kind.STALE
    answers = exchange(plane, contribution(3, 2, 0, VALUES[3]))
    assert np.array_equal(answers[1].values, VALUES[1] + VALUES[3]), "no value of the older block is left"


def test_older_block_of_the_same_iteration_is_stale(plane: DataPlane) -> None:
    plane.install(k=2, slots=4)
    exchange(plane, contribution(0, 1, 5, VALUES[0]))
    stale = exchange(plane, contribution(1, 1, 1, VALUES[1]))
    assert stale[2].kind == Kind.STALE, "blocks 1 and 5 share slot 1 of 4"


def test_weights_are_added_separately_from_the_count(plane: DataPlane) -> None:
    """One worker brings its stashed gradients: k counts workers, and every answer gives the weight of its gradients."""
    plane.install(k=3)
    assert exchange(plane, contribution(2, 1, 0, VALUES[2], weight=WEIGHT_MAX)) == {}
    assert exchange(plane, contribution(2, 1, 0, VALUES[2], weight=500)) == {}, "a duplicate gets no answer"
    refused = exchange(plane, contribution(0, 1, 0, VALUES[0], weight=40, scale=9))[1]
    assert (refused.kind, refused.header.count, refused.header.weight) == (Kind.FORMAT_MISMATCH, 1, WEIGHT_MAX)
    assert exchange(plane, contribution(0, 1, 0, VALUES[0], weight=41)) == {}
    answers = exchange(plane, contribution(3, 1, 0, VALUES[3], weight=7))
    assert answers.keys() == {1, 2, 3, 4}
    late = exchange(plane, contribution(1, 1, 0, VALUES[1], weight=9))[2]
    pulled = exchange(plane, pull(1, 1, 0, 4, weight=0))[2]
    for answer in (*answers.values(), late, pulled):
        assert (answer.header.count, answer.header.weight) == (3, WEIGHT_MAX + 41 + 7)
    for worker in (0, 1):
        exchange(plane, contribution(worker, 2, 0, VALUES[worker], weight=1 + worker))
    answers = exchange(plane, contribution(2, 2, 0, VALUES[2]))
    assert (answers[1].kind, answers[1].header.weight) == (Kind.RESULT, 1 + 2 + WEIGHT_UNIT), (
        "a new block id starts a new sum"
    )
    plane.set_k(1)
    answers = exchange(plane, contribution(3, 1, 1, VALUES[3], weight=12))
    assert (answers[2].header.count, answers[2].header.weight) == (1, 12)


def test_k_is_read_at_every_packet(plane: DataPlane) -> None:
    plane.install(k=4)
    for worker in (0, 1):
        assert exchange(plane, contribution(worker, 1, 0, VALUES[worker])) == {}
    plane.set_k(2)
    answers = exchange(plane, contribution(0, 1, 0, VALUES[0]))
    assert len(answers) == 4, "a retransmission closes the block after k was lowered"
    assert (answers[3].kind, answers[3].header.members, answers[3].header.k) == (Kind.RESULT, 0b0011, 2)
    assert np.array_equal(answers[3].values, VALUES[0] + VALUES[1])


def test_packet_of_exact_sums_may_override_k(plane: DataPlane) -> None:
    plane.install(k=4, slots=2048, exact_slots=2048)
    answers = exchange(plane, contribution(2, 1, 0, VALUES[2], k=1, job=EXACT))
    assert len(answers) == 4, "k = 1 with recipient 65535 is a broadcast"
    assert np.array_equal(answers[1].values, VALUES[2])


def test_iteration_beyond_the_next_turn_of_the_slots_opens_nothing(plane: DataPlane) -> None:
    """An iteration has at least one block, so a slot's next block is at most as many iterations later as there are
    slots. An empty slot takes any iteration.
    """
    plane.install(k=2, slots=4)
    exchange(plane, contribution(0, 70, 0, VALUES[0]))
    for iteration in (75, 70 << 16, 2**32 - 1):
        assert exchange(plane, contribution(1, iteration, 0, VALUES[1])) == {}
    assert plane.count() == {"OPENED": 1, "AHEAD": 3}
    answers = exchange(plane, contribution(1, 70, 0, VALUES[1]))
    assert np.array_equal(answers[1].values, VALUES[0] + VALUES[1])
    exchange(plane, contribution(0, 74, 0, VALUES[0]))
    assert plane.count()["OPENED"] == 2
    plane.put_job(k=2, generation=GENERATION + 1, slots=4)
    exchange(plane, contribution(0, 5000, 0, VALUES[0], generation=GENERATION + 1))
    assert plane.count()["OPENED"] == 3, "a new generation may begin at any iteration"


def test_exact_sums_may_continue_at_any_later_iteration(plane: DataPlane) -> None:
    plane.install(k=4, slots=4, exact_slots=4)
    for iteration in (70, 2**32 - 1):
        exchange(plane, contribution(0, iteration, 0, VALUES[0], job=EXACT))
    assert plane.count() == {"OPENED": 2}


def test_packet_that_is_ahead_is_not_measured(plane: DataPlane) -> None:
    plane.install(k=2, slots=4)
    for iteration in (1, 2**31, 2):
        exchange(plane, contribution(0, iteration, 0, VALUES[0]))
    assert [arrival.iteration for arrival in plane.await_arrivals(2)] == [1, 2]


def test_recipient_gets_the_sum_and_the_others_the_members(plane: DataPlane) -> None:
    plane.install(k=2)
    exchange(plane, contribution(0, 1, 0, VALUES[0], recipient=3))
    answers = exchange(plane, contribution(1, 1, 0, VALUES[1], recipient=3))
    assert answers.keys() == {1, 2, 3, 4}
    assert np.array_equal(answers[4].values, VALUES[0] + VALUES[1])
    for port, answer in answers.items():
        assert (answer.kind, answer.header.members, answer.header.count) == (Kind.RESULT, 0b0011, 2)
        assert (answer.header.worker, answer.header.words) == (port - 1, 4 if port == 4 else 0)
        assert answer.ether[IP].len == 28 + HEADER_BYTES + 256 * answer.header.words
    assert answers[1].values.size == 0
    late = exchange(plane, contribution(0, 1, 0, VALUES[0], recipient=3))
    assert {port: (a.kind, a.header.members, a.header.words) for port, a in late.items()} == {1: (Kind.LATE, 3, 0)}
    pulled = exchange(plane, pull(0, 1, 0, words=4))[1]
    assert np.array_equal(pulled.values, VALUES[0] + VALUES[1]), "a PULL gets the sum of a closed block"
    assert exchange(plane, contribution(0, 1, 1, VALUES[0], recipient=77)) == {}
    assert plane.count()["UNKNOWN_RECIPIENT"] == 1


def test_pull_fetches_closed_blocks_only(plane: DataPlane) -> None:
    plane.install(k=2)
    assert exchange(plane, pull(3, 1, 0, 4)) == {}, "a PULL of an unknown block gets no answer"
    exchange(plane, contribution(0, 1, 0, VALUES[0]))
    assert exchange(plane, pull(3, 1, 0, 4)) == {}, "a PULL of an open block gets no answer"
    exchange(plane, contribution(1, 1, 0, VALUES[1]))
    answer = exchange(plane, pull(3, 1, 0, 4))[4]
    assert (answer.kind, answer.header.scale, answer.header.members) == (Kind.LATE, 7, 0b11)
    assert np.array_equal(answer.values, VALUES[0] + VALUES[1])
    assert plane.count()["NOT_READY"] == 2


@pytest.mark.parametrize("fields", [{"scale": 9}, {"scale": -3}, {"lanes": 1}])
def test_contributions_in_another_format_are_refused(plane: DataPlane, fields: dict[str, int]) -> None:
    plane.install(k=2)
    exchange(plane, contribution(0, 1, 0, VALUES[0]))
    refused = exchange(plane, contribution(1, 1, 0, VALUES[1], **fields))
    assert refused.keys() == {2}
    assert (refused[2].kind, refused[2].header.scale, refused[2].header.lanes) == (Kind.FORMAT_MISMATCH, 7, 0)
    assert refused[2].header.flags == 0
    answers = exchange(plane, contribution(1, 1, 0, VALUES[1]))
    assert np.array_equal(answers[1].values, VALUES[0] + VALUES[1])


def test_blocks_of_another_length_are_refused_open_or_closed(plane: DataPlane) -> None:
    plane.install(k=2)
    exchange(plane, contribution(0, 1, 0, VALUES[0]))
    refused = exchange(plane, contribution(1, 1, 0, VALUES[1][:64]))[2]
    assert (refused.kind, refused.header.flags) == (Kind.FORMAT_MISMATCH, Flag.OTHER_WORDS)
    pulled = exchange(plane, contribution(1, 1, 0, VALUES[1][:64], kind=Kind.PULL))[2]
    assert (pulled.kind, pulled.header.members, pulled.header.count) == (Kind.FORMAT_MISMATCH, 0b1, 1), (
        "a PULL with other lanes is answered, as host/kofn_host/protocol/slot_query.py needs"
    )
    exchange(plane, contribution(1, 1, 0, VALUES[1]))
    refused = exchange(plane, contribution(2, 1, 0, VALUES[2][:64]))[3]
    assert (refused.kind, refused.header.flags) == (Kind.FORMAT_MISMATCH, Flag.OTHER_WORDS)


@pytest.mark.parametrize("words", [1, 2, 31, 32])
def test_every_length_is_summed(plane: DataPlane, words: int) -> None:
    plane.install(k=3)
    values = np.random.default_rng(words).integers(-(2**29), 2**29, (3, words * 64))
    exchange(plane, contribution(0, 1, 0, values[0]))
    exchange(plane, contribution(1, 1, 0, values[1]))
    answers = exchange(plane, contribution(2, 1, 0, values[2]))
    assert np.array_equal(answers[1].values, values.sum(axis=0))


def header(**fields: int) -> KofnHeader:
    return KofnHeader(job=1, generation=GENERATION, worker=0, words=1, iteration=1)._replace(**fields)


def truncated(sent: bytes) -> bytes:
    return sent[:150]


def with_byte(sent: bytes, offset: int, value: int) -> bytes:
    return sent[:offset] + bytes([value]) + sent[offset + 1 :]


GOOD = frame(1, header(), bytes(256))

INTRUDERS = {
    "WRONG_PORT": [frame(1, header(worker=1), bytes(256)), frame(1, header(worker=200), bytes(256))],
    "UNKNOWN_JOB": [frame(1, header(job=2), bytes(256))],
    "OLD_GENERATION": [frame(1, header(generation=generation), bytes(256)) for generation in (0, GENERATION + 1)],
    "UNKNOWN_LANES": [frame(1, header(lanes=5), bytes(256))],
    "BAD_KIND": [frame(1, header(kind=kind), bytes(256)) for kind in (2, 3, 4, 5, 15)],
    "BAD_VERSION": [frame(1, header(version=version), bytes(256)) for version in (0, 1, 2, 3)],
    "BAD_LENGTH": [
        frame(1, header(words=0), b""),
        frame(1, header(words=33), bytes(33 * 256)),
        frame(1, header(words=1), bytes(512)),
        frame(1, header(words=2), bytes(256)),
        with_byte(GOOD, 17, 0),  # IPv4's total length
    ],
    "BAD_ITERATION": [frame(1, header(iteration=0), bytes(256))],
    "BAD_COUNT": [
        frame(1, header(**fields), bytes(256))
        for fields in (
            {"count": 2},
            {"count": 255},
            {"weight": 0},
            {"weight": WEIGHT_MAX + 1},
            {"weight": 2**32 - 1},
            {"weight": 0, "count": 0},
            {"weight": WEIGHT_MAX + 1, "count": 0},
            {"kind": Kind.PULL, "count": 0},
            {"kind": Kind.PULL, "count": 2},
        )
    ],
    "BAD_COUNT of fewer than k": [
        frame(1, header(k=k, **fields), bytes(256)) for k in (1, 2) for fields in ({}, {"kind": Kind.PULL})
    ],
    "BAD_PART": [
        frame(1, header(part=part, **fields), bytes(256))
        for part in (4, 5, 64, 255)
        for fields in ({}, {"count": 0}, {"kind": Kind.PULL})
    ],
    "FULL": [
        frame(1, header(job=EXACT, count=0, part=part, k=k), bytes(256))
        for part, k in ((0, 4), (1, 4), (3, 5), (1, 65535))
    ],
    "BAD_CHECKSUM": [
        with_byte(GOOD, at, GOOD[at] ^ 1) for at in (24, 43, 45, 51, 55, 63, 66, 69, 71, 72, 74, 99, 109, 110, 200, 361)
    ],
    "TRUNCATED": [GOOD[:150], GOOD[:60], GOOD[:90]],
}


@pytest.mark.parametrize("reason", INTRUDERS)
def test_intruders_are_dropped_and_counted(plane: DataPlane, reason: str) -> None:
    plane.install(k=3, slots=2048, exact_slots=2048)
    for sent in INTRUDERS[reason]:
        assert plane.lab.exchange(1, sent) == {}
    assert plane.count() == {reason.split(maxsplit=1)[0]: len(INTRUDERS[reason])}
    assert plane.refused() == ({} if reason == "FULL" else {"h1 at port 1": len(INTRUDERS[reason])})
    plane.set_k(1)
    answers = exchange(plane, (1, frame(1, header(), bytes(256))))
    assert len(answers) == 4, "the slot keeps its contents"


def test_new_generation_takes_over_slots_unchanged(plane: DataPlane) -> None:
    plane.install(k=2)
    exchange(plane, contribution(0, 9, 0, VALUES[0]))
    exchange(plane, contribution(1, 9, 0, VALUES[1]))
    exchange(plane, contribution(0, 9, 1, VALUES[0]))
    plane.put_job(k=2, generation=GENERATION + 1, slots=4096)
    new = {"generation": GENERATION + 1}
    for block in (0, 1):  # one slot is closed and one is open, both in a later iteration
        assert exchange(plane, contribution(3, 1, block, VALUES[3], **new)) == {}
        assert exchange(plane, contribution(0, 9, block, VALUES[0])) == {}, "packets of the old generation are dropped"
        answers = exchange(plane, contribution(2, 1, block, VALUES[2], **new))
        assert np.array_equal(answers[1].values, VALUES[2] + VALUES[3])
    assert plane.count()["OLD_GENERATION"] == 2


def test_first_blocks_are_reported(plane: DataPlane) -> None:
    """Each worker's first counted contribution in an iteration is reported once, whatever its block and part."""
    plane.install(k=2)
    for worker in (2, 0, 1):
        exchange(plane, contribution(worker, 1, 7, VALUES[worker], part=worker))
        exchange(plane, contribution(worker, 1, 0, VALUES[worker]))
        exchange(plane, contribution(worker, 1, 7, VALUES[worker], part=worker))
    for worker in (3, 0):
        exchange(plane, pull(worker, 2, 5, 4))
        exchange(plane, contribution(worker, 2, 5, VALUES[worker], count=0, part=1))
    exchange(plane, contribution(0, 2, 5, VALUES[0]))
    exchange(plane, contribution(2, 2, 5, VALUES[2]))
    # late; the answer's count is not the packet's own
    exchange(plane, contribution(3, 2, 5, VALUES[3], count=0, part=2))
    exchange(plane, contribution(3, 2, 5, VALUES[3]))
    exchange(plane, contribution(3, 1, 5, VALUES[3]))  # stale, and of an iteration that is over
    exchange(plane, contribution(1, 3, 2, VALUES[1]))
    arrivals = plane.await_arrivals(7)
    assert [(a.worker, a.iteration, a.verdict) for a in arrivals] == [
        (2, 1, "OPENED"), (0, 1, "CLOSED"), (1, 1, "LATE"),
        (0, 2, "ADDED"), (2, 2, "CLOSED"), (3, 2, "LATE"), (1, 3, "OPENED"),
    ]  # fmt: skip
    times = [arrival.timestamp_us for arrival in arrivals]
    assert times == sorted(times)


def test_first_blocks_of_a_new_generation_are_reported(plane: DataPlane) -> None:
    """Its iterations may restart at 1."""
    plane.install(k=2)
    exchange(plane, contribution(0, 9, 3, VALUES[0]))
    plane.put_job(k=2, generation=GENERATION + 1, slots=4096)
    exchange(plane, contribution(0, 2, 3, VALUES[0], generation=GENERATION + 1))
    assert [(a.iteration, a.verdict) for a in plane.await_arrivals(2)] == [(9, "OPENED"), (2, "OPENED")]


def test_other_traffic_is_forwarded(plane: DataPlane) -> None:
    plane.install(k=2)
    ping = bytes(Ether(dst=host_mac(3), src=host_mac(1)) / IP(src="10.0.0.1", dst="10.0.0.3") / ICMP() / (b"x" * 60))
    assert plane.lab.exchange(1, ping) == {3: [ping]}
    query = bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=host_mac(1)) / ARP(pdst="10.0.0.3") / (b"\0" * 18))
    assert plane.lab.exchange(1, query) == {port: [query] for port in (2, 3, 4)}
    assert plane.count() == {}


RESULT = raw(
    IP(src="10.0.0.254", dst="10.0.0.3")
    / UDP(sport=PORT, dport=PORT, chksum=0)
    / Raw(encode(KofnHeader(kind=Kind.RESULT, job=1, worker=2, iteration=1, count=1, k=1, members=1), bytes(256)))
)
"""A RESULT from the switch's address to the host at port 3."""


def with_options(packet: bytes, options: bytes) -> bytes:
    """Return an IPv4 packet with IP options."""
    parsed = IP(packet)
    return raw(IP(src=parsed.src, dst=parsed.dst, proto=17, options=[IPOption(options)]) / parsed.payload)


DISGUISED = {
    "IP options": [(0x0800, with_options(RESULT, b"\x01\x01\x01\x00"))],
    "fragments": [(0x0800, raw(part)) for part in fragment(IP(RESULT), 200)],
    "fragments with IP options": [
        (0x0800, raw(part)) for part in fragment(IP(with_options(RESULT, b"\x01\x01\x01\x00")), 200)
    ],
    "another port of the switch": [(0x0800, raw(IP(src="10.0.0.254", dst="10.0.0.3") / UDP(dport=19279) / b"x"))],
    "another worker's address": [(0x0800, raw(IP(src="10.0.0.2", dst="10.0.0.3") / UDP(dport=19279) / b"x"))],
    "UDP-Lite": [(0x0800, raw(IP(src="10.0.0.254", dst="10.0.0.3", proto=136) / IP(RESULT)[UDP]))],
    "priority tag": [(0x8100, b"\0\0\x08\0" + RESULT)],
    "service and priority tag": [(0x88A8, b"\0\0\x81\0\0\0\x08\0" + RESULT)],
    "old service tag": [(0x9100, b"\0\0\x08\0" + RESULT)],
    "LLC and SNAP": [(8 + len(RESULT), b"\xaa\xaa\x03\0\0\0\x08\0" + RESULT)],
    "PPPoE": [(0x8864, b"\x11\0\0\x01" + (2 + len(RESULT)).to_bytes(2) + b"\0\x21" + RESULT)],
    "MPLS": [(0x8847, b"\0\0\x01\xff" + RESULT)],
    "MACsec": [(0x88E5, b"\0\0\0\0\0\x01" + RESULT)],
}
"""Frames in which a kernel may find a packet for a worker's socket: Ethernet types and payloads."""


@pytest.mark.parametrize("disguise", DISGUISED)
def test_no_host_speaks_for_the_switch_or_another_host(plane: DataPlane, disguise: str) -> None:
    plane.install(k=2)
    for ether_type, payload in DISGUISED[disguise]:
        assert plane.lab.exchange(1, raw(Ether(dst=host_mac(3), src=host_mac(1), type=ether_type)) + payload) == {}
    assert plane.refused() == {"h1 at port 1": len(DISGUISED[disguise])}


def test_ipv6_is_dropped_and_its_sender_is_not_blamed(plane: DataPlane) -> None:
    plane.install(k=2)
    hidden = raw(Ether(dst=host_mac(3), src=host_mac(1)) / IPv6(dst="::ffff:10.0.0.3") / IP(RESULT)[UDP])
    assert plane.lab.exchange(1, hidden) == {}
    assert plane.refused() == {}


def test_jobs_do_not_share_slots(plane: DataPlane) -> None:
    plane.install(k=2, slots=8)
    for block in range(4):
        exchange(plane, contribution(0, 1, block, VALUES[0], slot=block + 8 * 1000))
    for block in range(4):
        answers = exchange(plane, contribution(1, 1, block, VALUES[1]))
        assert np.array_equal(answers[1].values, VALUES[0] + VALUES[1]), "slot numbers wrap inside the job's region"
