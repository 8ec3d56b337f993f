"""The Internet checksum over random lists of fields, with headers missing, equals the sum of the bits in words."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from kofn_switch.engine.engine import Engine
from tests.switch.build import document, field

pytestmark = pytest.mark.slow

WIDTHS = (1, 3, 7, 8, 13, 16, 24, 31, 32, 33, 48, 60, 63, 64, 65, 96, 100, 128, 250, 256, 2048)
SINGLE = ("h0", "h1", "h2", "h3", "h4")
STACK = ("s[0]", "s[1]", "s[2]")
OPTIONAL = (*SINGLE, *STACK)
SUMS = 8
HEAD_BYTES = 1 + 2 * SUMS


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A program that writes SUMS checksums into its first header, with the fields of each and whether it covers the
    payload.
    """

    types: dict[str, list[list[Any]]]
    inputs: list[list[tuple[str, str]]]
    payload: list[bool]

    @classmethod
    def of(cls, seed: int) -> "Sums":
        """Return random sums. Sums 0 and 1 cover whole headers of whole words, the others any fields in any order."""
        pick = random.Random(seed)
        types: dict[str, list[list[Any]]]
        types = {name: [[f"f{i}", pick.choice(WIDTHS), False] for i in range(pick.randint(1, 6))] for name in SINGLE}
        types["h0"] = [["f0", 4, False], ["f1", 12, False], ["f2", 64, False], ["f3", 2048, False]]
        types |= {name: [["value", (512, 560)[seed % 2], False]] for name in STACK}
        for name in SINGLE:
            rest = -sum(width for _, width, _ in types[name]) % 8
            types[name] += [["_padding", rest, False]] if rest else []
        every = [(name, str(one[0])) for name in OPTIONAL for one in types[name] if one[0] != "_padding"]
        whole = [part for part in every if part[0] in ("h0", *STACK)]
        mixed = [pick.choices(every, k=pick.randint(1, 12)) for _ in range(SUMS - 3)]
        return cls(types=types, inputs=[whole, whole, every, *mixed], payload=[i % 2 == 1 for i in range(SUMS)])

    def program(self) -> bytes:
        bits = [[f"p{i}", 1, False] for i in range(len(OPTIONAL))]
        head = [*bits, *[[f"c{i}", 16, False] for i in range(SUMS)]]
        kinds = {"head": head, **{f"{name}_t": self.types[name] for name in SINGLE}, "word": self.types["s[0]"]}
        headers = {"in": "head", **{name: f"{name}_t" for name in SINGLE}, **dict.fromkeys(STACK, "word")}
        first = 2 + len(SINGLE)  # after standard_metadata and in
        stack = {"name": "s", "id": 0, "header_type": "word", "size": len(STACK)}
        return document(
            header_types=kinds,
            headers=headers,
            primitives=[],
            header_stacks=[{**stack, "header_ids": [first + i for i in range(len(STACK))]}],
            parsers=[{"name": "parser", "id": 0, "init_state": "start", "parse_states": self._states()}],
            calculations=[self._calculation(i) for i in range(SUMS)],
            checksums=[
                {"name": f"sum{i}", "id": i, "target": ["in", f"c{i}"], "type": "generic", "calculation": f"calc{i}",
                 "verify": False, "update": True, "if_cond": None}
                for i in range(SUMS)
            ],
        )  # fmt: skip

    def _calculation(self, number: int) -> dict[str, Any]:
        parts = [field(*part) for part in self.inputs[number]]
        parts += [{"type": "payload"}] if self.payload[number] else []
        return {"name": f"calc{number}", "id": number, "algo": "csum16", "input": parts}

    @staticmethod
    def _states() -> list[dict[str, Any]]:
        """Return the parser's states: start, then for each optional header one that reads its bit and one that extracts
        it.
        """

        def state(name: str, extracts: str | None, key: list[Any], *transitions: tuple[str | None, str | None]) -> Any:
            ops = [{"op": "extract", "parameters": [{"type": "regular", "value": extracts}]}] if extracts else []
            cases = [
                {"type": "hexstr" if value else "default", "value": value, "mask": None, "next_state": following}
                for value, following in transitions
            ]
            return {"name": name, "id": 0, "parser_ops": ops, "transition_key": key, "transitions": cases}

        states = [state("start", "in", [], (None, "look0"))]
        for i, header in enumerate(OPTIONAL):
            after = f"look{i + 1}" if i + 1 < len(OPTIONAL) else None
            states.append(state(f"look{i}", None, [field("in", f"p{i}")], ("0x01", f"take{i}"), (None, after)))
            states.append(state(f"take{i}", header, [], (None, after)))
        return states

    def expected(self, number: int, values: dict[tuple[str, str], int], payload: bytes) -> int:
        """Return a checksum; `values` has the fields of valid headers."""
        bits = ""
        for header, name in self.inputs[number]:
            width = next(one[1] for one in self.types[header] if one[0] == name)
            bits += format(values[header, name], f"0{width}b") if (header, name) in values else ""
        bits += "0" * (-len(bits) % 8)
        bits += "".join(format(byte, "08b") for byte in payload) if self.payload[number] else ""
        bits += "0" * (-len(bits) % 16)
        total = sum(int(bits[at : at + 16], 2) for at in range(0, len(bits), 16))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return total ^ 0xFFFF


def packet(sums: Sums, pick: random.Random) -> tuple[bytes, dict[tuple[str, str], int], bytes]:
    """Return (packet, fields of its headers, payload); some packets are all zeros or ones."""
    present = [pick.random() < 0.7 for _ in OPTIONAL]
    fill = pick.choice((None, None, None, 0, -1))
    values: dict[tuple[str, str], int] = {}
    bits = "".join(str(int(here)) for here in present) + "0" * 16 * SUMS
    for header, here in zip(OPTIONAL, present, strict=True):
        for name, width, _ in sums.types[header] if here else ():
            value = pick.getrandbits(width) if fill is None else fill % (1 << width)
            values[header, name] = value
            bits += format(value, f"0{width}b")
    payload = pick.randbytes(pick.choice((0, 1, 2, 7, 8, 9, 31)))
    return int(bits, 2).to_bytes(len(bits) // 8, "big") + payload, values, payload


@pytest.mark.parametrize("seed", range(6))
def test_checksum_equals_the_sum_of_words(seed: int) -> None:
    sums, pick, engine = Sums.of(seed), random.Random(seed), Engine({})
    engine.load(sums.program())
    for _ in range(150):
        data, values, payload = packet(sums, pick)
        ((_, out),) = engine.inject(1, data)
        got = [int.from_bytes(out[1 + 2 * i : 3 + 2 * i], "big") for i in range(SUMS)]
        assert got == [sums.expected(i, values, payload) for i in range(SUMS)]
        assert out[HEAD_BYTES:] == data[HEAD_BYTES:]
