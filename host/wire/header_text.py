"""The C header and the table of docs/reference/protocol.md, written from KofnHeader (`make header`).

`python -m kofn.host.wire.header_text` writes both; tests fail while they are stale.
"""

from itertools import accumulate
from pathlib import Path

from kofn.host.wire import packet as wire

ROOT = Path(__file__).resolve().parents[2]
C_HEADER = ROOT / "host" / "wire" / "kofn_header.h"
PROTOCOL = ROOT / "docs" / "reference" / "protocol.md"
BEGIN, END = "<!-- `make header` writes this table -->", "<!-- end of the table -->"

MEANINGS = {
    "version": "3",
    "kind": "[message type](#message-types)",
    "job": "job, 1 to 127; plus 128 for the job's [exact sums](#exact-sums)",
    "worker": "the sender's rank, 0 to 63; in answers, the rank that the answer is sent to",
    "recipient": "255: the sum goes to all workers. Else: to this rank alone, and to the others without values",
    "lanes": "code of the [lane width](#lanes): 0 = 32 bits, 1 = 16, 2 = 8, 3 = 4; 4 = [votes](#votes)",
    "flags": "[depends on the message type](#flags)",
    "words": "number of 256-byte words that follow, 1 to 32; 0 in a RESULT or LATE without values",
    "k": "counted contributions that complete the block. CONTRIBUTE: 0 means the job's k. Answers: the k in force",
    "generation": "generation of the job's slots: Unix time in seconds of their last start, or later; always growing",
    "iteration": "from 1 (an empty slot has iteration 0)",
    "block": "number of the block in the gradient",
    "slot": "index of the slot, chosen by the worker; the switch wraps it into the job's region",
    "checksum": "the Internet checksum (RFC 1071) of header and values",
    "scale": "signed; a lane of 1 means 2**-scale. The switch only compares it: all addends have the same",
    "count": (
        "CONTRIBUTE: 1 if the packet counts among the k, 0 if it is *merged*, that is added without being counted."
        " PULL: 1. Answers: the number of counted contributions in the sum"
    ),
    "part": "0 to 3: number of the worker's contribution to this block; answers keep the sender's",
    "weight": (
        "weight of the gradients in the values, in units of 1/256 gradient. CONTRIBUTE: at most 1,023 gradients."
        " Answers: the weight of the sum. PULL: ignored"
    ),
    "members": "RESULT, LATE, FORMAT_MISMATCH: bitmap of the contributions in the sum; bit 64 x part + rank",
}
"""The meaning of each field, in Markdown."""


def c_header() -> str:
    """Numbers, offsets in a frame (Ethernet, IPv4, UDP) and the list of fields."""
    numbers = {"PORT": wire.PORT, "HEADER_BYTES": wire.HEADER_BYTES, "HEAD": wire.FRAME_BYTES + wire.HEADER_BYTES}
    numbers |= {"VERSION": wire.VERSION, "EVERYONE": wire.EVERYONE, "WEIGHT_UNIT": wire.WEIGHT_UNIT}
    numbers |= {"FRAME_BYTES": wire.FRAME_BYTES, "WORD_BYTES": wire.WORD_BYTES, "WORDS_MAX": wire.WORDS_MAX}
    numbers |= {"PARTS": wire.PARTS, "MEMBERS_BYTES": wire.MEMBERS_BYTES, "OTHER_WORDS": wire.Flag.OTHER_WORDS.value}
    numbers |= {"AGAIN": wire.Flag.AGAIN.value, "VOTE_WORDS": wire.VOTE_WORDS, "VOTES": wire.Lanes.VOTES.value}
    numbers |= {f"AT_{name.upper()}": wire.FRAME_BYTES + start // 8 for name, start, _ in _places()}
    numbers |= {kind.name: kind.value for kind in wire.Kind}
    lines = [f"#define KOFN_{name} {number}" for name, number in numbers.items()]
    return f"{C_HEAD}\n" + "\n".join(lines) + f"\n\n{_c_fields()}\n"


C_HEAD = """// Made from host/wire/packet.py by `make header`: the packet of docs/reference/protocol.md.
//
// KOFN_AT_: a field's byte in an Ethernet frame. KOFN_FIELDS: FIELD(type, name, bits before it in the header, its bits)
// of each but `members`, whose bits are no integer's.
#pragma once
"""


def _c_fields() -> str:
    """KOFN_FIELDS."""
    rows = [f"FIELD({_c_type(name, bits)}, {name}, {start}, {bits})" for name, start, bits in _places() if bits <= 32]
    return " \\\n    ".join(("#define KOFN_FIELDS(FIELD)", *rows))


def _c_type(name: str, bits: int) -> str:
    return f"{'' if name in wire.SIGNED_FIELDS else 'u'}int{max(bits, 8)}_t"


def _places() -> list[tuple[str, int, int]]:
    """(name, bits before it, bits) of each field."""
    starts = accumulate((bits for _, bits in wire.HEADER_FIELDS), initial=0)
    return [(name, start, bits) for (name, bits), start in zip(wire.HEADER_FIELDS, starts, strict=False)]


def field_table() -> str:
    """Every field in wire order; KeyError where one has no meaning."""
    rows = [f"| {name} | {bits} | {MEANINGS[name]} |" for name, bits in wire.HEADER_FIELDS]
    return "\n".join(("| field | bits | meaning |", "|---|---|---|", *rows))


def protocol() -> str:
    """Return docs/reference/protocol.md with the current table."""
    before, _, rest = PROTOCOL.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{field_table()}\n\n{END}{after}"


def main() -> None:
    C_HEADER.write_text(c_header())
    PROTOCOL.write_text(protocol())


if __name__ == "__main__":
    main()
