"""One field table, two codecs and the header in p4c's output agree."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_common.wire import packet as wire
from kofn_common.wire import scapy_layer as packets
from kofn_common.wire import sizes
from kofn_common.wire.errors import WireError

PROGRAM = Path(__file__).parents[3] / "p4src" / "build" / "kofn.json"


def headers(words: int = 1) -> st.SearchStrategy[wire.KofnHeader]:
    def field(name: str, bits: int) -> st.SearchStrategy[int]:
        if name in wire.SIGNED_FIELDS:
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return st.integers(0, 2**bits - 1)

    fixed = {"version": st.just(wire.VERSION), "words": st.just(words), "bitmaps": st.just(0)}
    return st.builds(wire.KofnHeader, **{name: fixed.get(name, field(name, bits)) for name, bits in wire.HEADER_FIELDS})


@given(headers(), st.binary(min_size=256, max_size=256))
def test_codecs_agree(header, values):
    datagram = wire.encode(header, values)
    assert len(datagram) == wire.HEADER_BYTES + 256
    decoded = wire.decode_header(datagram)
    assert decoded == header._replace(checksum=decoded.checksum)
    assert packets.encode(header, values) == datagram
    assert packets.decode_header(datagram) == decoded


@given(headers(), st.binary(min_size=256, max_size=256), st.integers(0, 8 * (wire.HEADER_BYTES + 256) - 1))
def test_every_flipped_bit_is_detected(header, values, bit):
    datagram = bytearray(wire.encode(header, values))
    datagram[bit // 8] ^= 1 << bit % 8
    for codec in (wire, packets):
        with pytest.raises(WireError):
            codec.decode_header(bytes(datagram))


def test_table_equals_p4s_header():
    program = json.loads(PROGRAM.read_text())
    kofn = next(header for header in program["header_types"] if header["name"] == "kofn_h")
    assert [(name, bits) for name, bits, *_ in kofn["fields"]] == list(wire.HEADER_FIELDS)


@pytest.mark.parametrize(("enum", "names"), [(wire.Kind, "kind_t")])
def test_kinds_equal_p4s(enum, names):
    text = (PROGRAM.parents[1] / "headers.p4").read_text()
    body = text.split(names + " {")[1].split("}")[0]
    members = [line.strip().rstrip(",").split(" = ") for line in body.splitlines() if "=" in line]
    assert {name: int(value) for name, value in members} == {member.name: member.value for member in enum}


@pytest.mark.parametrize("codec", [wire, packets])
@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"", "0 bytes: a kofn header has 68"),
        (bytes(67), "67 bytes"),
        (b"\x30" + bytes(67), "version must be 4, got 3"),
        (
            wire.encode(wire.KofnHeader(words=2), bytes(256)),
            "must have 68 \\+ bitmaps \\* 32 \\+ words \\* 256 bytes, got 324 with bitmaps = 0, words = 2",
        ),
        (wire.encode(wire.KofnHeader(bitmaps=2), bytes(256)), "got 324 with bitmaps = 2, words = 1"),
    ],
)
def test_bad_datagrams_are_named(datagram, reason, codec):
    with pytest.raises(WireError, match=reason):
        codec.decode_header(datagram)


def test_fields_out_of_range_are_named():
    with pytest.raises(WireError, match="must be 0 to 15"):
        wire.encode_header(wire.KofnHeader(kind=16))
    with pytest.raises(WireError, match="job=256"):
        wire.encode_header(wire.KofnHeader(job=256))
    for members in (-1, 1 << 256):
        with pytest.raises(WireError, match=f"members={members}"):
            wire.encode_header(wire.KofnHeader(members=members))


def test_bit_of_the_bitmap_is_a_part_of_a_rank():
    bits = {
        (rank, part): wire.bit_of(rank, part) for rank in range(sizes.RACK_WORKERS_MAX) for part in range(sizes.PARTS)
    }
    assert sorted(bits.values()) == [1 << at for at in range(256)]
    assert all(wire.members_of(bit) == [rank] for (rank, _), bit in bits.items())
    assert (bits[3, 0], bits[3, 1], bits[63, 3]) == (8, 8 << 64, 1 << 255)
    assert wire.members_of(bits[9, 0] | bits[9, 2] | bits[2, 3] | bits[63, 1]) == [2, 9, 63]
    assert wire.members_of(0) == []
    datagram = wire.encode(wire.KofnHeader(members=bits[1, 0] | bits[63, 3]), bytes(256))
    assert (datagram[36:68], wire.decode_header(datagram).members) == (b"\x80" + bytes(30) + b"\x02", 2 | 1 << 255)
