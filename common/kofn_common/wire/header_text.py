"""Generates the texts that repeat KofnHeader and sizes.py: the C header, p4src/sizes.p4 and the tables of
docs/reference/protocol.md.

`python -m kofn_common.wire.header_text` (`make header`) writes these files; tests fail while one of them is stale.
"""

import re
from itertools import accumulate
from pathlib import Path

from kofn_common.wire import packet as wire
from kofn_common.wire import sizes

ROOT = Path(__file__).resolve().parents[3]
C_HEADER = ROOT / "common" / "kofn_common" / "wire" / "kofn_header.h"
P4_SIZES = ROOT / "p4src" / "sizes.p4"
PROTOCOL = ROOT / "docs" / "reference" / "protocol.md"
BEGIN, END = "<!-- `make header` writes this table -->", "<!-- end of the table -->"

UDP_BYTES = 8
"""Bytes of the UDP header, which the length field of UDP includes."""

MEANINGS = {
    "version": "4",
    "kind": (
        "0 CONTRIBUTE, 1 PULL (workers); 2 RESULT, 3 LATE, 4 STALE, 5 FORMAT_MISMATCH (switch); 6 ADDED"
        " ([switches of a tree](tree.md))"
    ),
    "job": "job, 1..127; job + 128 is used for the job's [exact sums](#exact-sums)",
    "worker": (
        "requests: the rank of the sender, 0..63; answers: the rank of the receiver; in a [tree](tree.md) a worker's"
        " rank within its rack"
    ),
    "rack": "answers: the rack of the receiver, 0..15; requests: ignored",
    "recipient": (
        "65535: all workers get the sum; another value: only the worker 256 x rack + rank gets the sum, and the other"
        " workers get the header alone (reduce-scatter)"
    ),
    "lanes": "lane width: 0 = 32 bits, 1 = 16, 2 = 8, 3 = 4; 4 = [votes](#votes)",
    "flags": "see [Flags](#flags)",
    "words": "256-byte words that follow, 1..32; 0 in a RESULT or LATE without the sum",
    "k": (
        "counted contributions that complete a block. In a CONTRIBUTE, 0 means the job's k, and another value"
        " overrides it; answers: the k in force"
    ),
    "generation": (
        "number of the last restart of the job's slots: its Unix time in seconds, or a larger value; it only grows"
    ),
    "iteration": "from 1 (an empty slot has iteration 0)",
    "block": "block of the gradient",
    "slot": "chosen by the host; the switch takes it modulo the job's number of slots",
    "checksum": "the Internet checksum (RFC 1071) of header and values",
    "scale": (
        "signed; a lane of 1 means 2**-scale. The switch only compares scales: all contributions to a slot must have"
        " the same scale"
    ),
    "count": (
        "CONTRIBUTE: how many of the k counted contributions the packet contains. A host sends 1, or 0 for a packet"
        " that is *merged*: added, but not counted. PULL: 1. Answers: the number of counted contributions in the sum"
    ),
    "part": "0 to 3: number of the worker's contribution to this block; answers keep the sender's",
    "bitmaps": (
        "RESULT and LATE in a tree: the number of racks. For each rack, a bitmap of its members (32 bytes) follows the"
        " header. Other packets: 0"
    ),
    "weight": (
        "total weight of the gradients in the packet, in 1/256: a fresh gradient weighs 1, an old one less. CONTRIBUTE:"
        " 1..1,023 gradients (more count as 1,023); answers: of all gradients in the sum; PULL: ignored"
    ),
    "members": "RESULT, LATE, FORMAT_MISMATCH: bitmap of the contributions in the sum; bit 64 x part + rank",
}
"""The meaning of each field, in Markdown."""


def c_header() -> str:
    """Return the C header: numbers, offsets in a frame (Ethernet, IPv4, UDP) and the list of fields."""
    numbers = {"PORT": wire.PORT, "HEADER_BYTES": wire.HEADER_BYTES, "HEAD": wire.FRAME_BYTES + wire.HEADER_BYTES}
    numbers |= {"VERSION": wire.VERSION, "EVERYONE": wire.EVERYONE, "WEIGHT_UNIT": sizes.WEIGHT_UNIT}
    numbers |= {"FRAME_BYTES": wire.FRAME_BYTES, "WORD_BYTES": wire.WORD_BYTES, "WORDS_MAX": sizes.WORDS_MAX}
    numbers |= {"PARTS": sizes.PARTS, "RACK_WORKERS_MAX": sizes.RACK_WORKERS_MAX, "RACKS_MAX": sizes.RACKS_MAX}
    numbers |= {"SLOTS": sizes.SLOTS, "JOB_MAX": sizes.JOB_MAX}
    numbers |= {"MEMBERS_BYTES": wire.MEMBERS_BYTES, "OTHER_WORDS": wire.Flag.OTHER_WORDS.value}
    numbers |= {"AGAIN": wire.Flag.AGAIN.value, "VOTE_WORDS": sizes.VOTE_WORDS, "VOTES": wire.Lanes.VOTES.value}
    numbers |= {f"AT_{name.upper()}": wire.FRAME_BYTES + start // 8 for name, start, _ in _places()}
    numbers |= {kind.name: kind.value for kind in wire.Kind}
    lines = [f"#define KOFN_{name} {number}" for name, number in numbers.items()]
    return f"{C_HEAD}\n" + "\n".join(lines) + f"\n\n{_c_fields()}\n"


def p4_sizes() -> str:
    """Return p4src/sizes.p4: the limits of the P4 program, and the header values with which it compares packets."""
    limits = {
        "WORDS_MAX": sizes.WORDS_MAX,
        "VOTE_WORDS": sizes.VOTE_WORDS,
        "RACKS_MAX": sizes.RACKS_MAX,
        "JOBS": sizes.JOBS,
        "WORKERS": sizes.RACK_WORKERS_MAX * sizes.JOBS,
        "SOURCES": sizes.WORKERS_MAX,
        "PORTS": sizes.PORTS,
        "SLOTS": sizes.SLOTS,
        "SLOT_BITS": sizes.SLOT_BITS,
        "RACK_SLOTS": sizes.RACKS_MAX * sizes.SLOTS,
    }
    numbers = {
        "bit<16> KOFN_PORT": f"{wire.PORT:#x}",
        "bit<4> KOFN_VERSION": wire.VERSION,
        "bit<8> PARTS": sizes.PARTS,
        "bit<8> JOB_MAX": sizes.JOB_MAX,
        "bit<32> WEIGHT_MAX": sizes.WEIGHT_MAX,
        "bit<16> EVERYONE": wire.EVERYONE,
        "bit<4> VOTES": wire.Lanes.VOTES.value,
        "bit<4> OTHER_WORDS": wire.Flag.OTHER_WORDS.value,
        "bit<4> AGAIN": wire.Flag.AGAIN.value,
        "bit<16> UDP_AND_KOFN_LENGTH": UDP_BYTES + wire.HEADER_BYTES,
    }
    lines = [f"#define {name} {number}" for name, number in limits.items()]
    lines += [f"const {name} = {number};" for name, number in numbers.items()]
    return P4_HEAD + "\n".join(lines) + "\n"


P4_HEAD = """// Generated by `make header` from kofn_common.wire: sizes.py and packet.py say what each number means.
// WORKERS: workers of all jobs at one switch. SOURCES: hosts at one switch. RACK_SLOTS: a cell for each rack and slot.
// SLOTS is 2 to the power of SLOT_BITS.

"""

C_HEAD = """// Generated by `make header` from kofn_common.wire.packet: the packet of docs/reference/protocol.md.
//
// KOFN_AT_: a field's byte in an Ethernet frame. KOFN_FIELDS: FIELD(type, name, bits before it in the header, its bits)
// of each field except `members`, which fits no integer.
#pragma once
"""


def _c_fields() -> str:
    """Return the macro KOFN_FIELDS."""
    rows = [f"FIELD({_c_type(name, bits)}, {name}, {start}, {bits})" for name, start, bits in _places() if bits <= 32]
    return " \\\n    ".join(("#define KOFN_FIELDS(FIELD)", *rows))


def _c_type(name: str, bits: int) -> str:
    return f"{'' if name in wire.SIGNED_FIELDS else 'u'}int{max(bits, 8)}_t"


def _places() -> list[tuple[str, int, int]]:
    """Return (name, bits before it, bits) of each field."""
    starts = accumulate((bits for _, bits in wire.HEADER_FIELDS), initial=0)
    return [(name, start, bits) for (name, bits), start in zip(wire.HEADER_FIELDS, starts, strict=False)]


def field_table() -> str:
    """Return a table of all fields in wire order; KeyError if MEANINGS lacks one."""
    rows = [f"| {name} | {bits} | {MEANINGS[name]} |" for name, bits in wire.HEADER_FIELDS]
    return "\n".join(("| field | bits | meaning |", "|---|---|---|", *rows))


def constants_table() -> str:
    """Return a table of the packet's and the switch's constants."""
    rows = {
        "UDP port of the switch; of a parameter server; between workers": (
            f"{wire.PORT}; {wire.FORWARDED_PORT}; {wire.FORWARDED_PORT}"
        ),
        "words in a packet": f"1 to {sizes.WORDS_MAX}, of {wire.WORD_BYTES} bytes",
        "workers of a job": f"1 to {sizes.RACK_WORKERS_MAX} at one switch; {sizes.WORKERS_MAX:,} in a [tree](tree.md)",
        "parts: contributions of a worker to a block": f"{sizes.PARTS}",
        "slots of all jobs together": f"{sizes.SLOTS:,}",
        "slots of a job": "`job.slots`, a power of two",
        "window": "`job.window`, a power of two, at most half of the slots",
        "unit of a weight": f"1/{sizes.WEIGHT_UNIT} gradient",
        "unit of a gradient in fixed point": "2**-40",
    }
    return "\n".join(("| constant | value |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())))


def protocol() -> str:
    """Return docs/reference/protocol.md with the current tables."""
    tables = iter((field_table(), constants_table()))
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{next(tables)}\n\n{END}", PROTOCOL.read_text(), flags=re.S)


def main() -> None:
    C_HEADER.write_text(c_header())
    P4_SIZES.write_text(p4_sizes())
    PROTOCOL.write_text(protocol())


if __name__ == "__main__":
    main()
