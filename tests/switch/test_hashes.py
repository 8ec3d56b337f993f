"""Hash algorithms without a name in p4c, and long inputs; the values are BMv2's and those of published examples."""

import zlib

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import ProgramError
from tests.switch.build import Tree, const, document, field

SHORT = bytes.fromhex("12345678ff80")
LONG = b"Nobody inspects the spammish repetition"
VALUES = {
    "cksum16": (SHORT, 0x97D2),
    "crcCCITT": (SHORT, 0xAB40),
    "crc8_custom": (SHORT, 0xF5),
    "crc64_custom": (SHORT, 0xD890DCF28BD86000),
    "xor32": (SHORT, 0xEDB45678),
    "toeplitz": (SHORT, 0),
    "xxh64": (SHORT, 0x316C186334E8347F),
    "hash_ex": (SHORT, 0x93D6D8E9),
    "bmv2_hash": (LONG, 0xFBCEA83C8A378BF1),
    "crc32": (LONG, zlib.crc32(LONG)),
}


def hashed(algorithms: list[str]) -> bytes:
    """Return each algorithm's hash of its input, from the result header."""
    inputs = {name: field("in", "short" if VALUES.get(name, (SHORT,))[0] == SHORT else "long") for name in algorithms}
    return document(
        header_types={
            "in_t": [["short", 8 * len(SHORT), False], ["long", 8 * len(LONG), False]],
            "out_t": [[name, 64, False] for name in algorithms],
        },
        headers={"in": "in_t", "out": "out_t"},
        primitives=[
            {"op": "add_header", "parameters": [{"type": "header", "value": "out"}]},
            *[into(field("out", name), name) for name in algorithms],
        ],
        calculations=[{"name": name, "algo": name, "input": [inputs[name]]} for name in algorithms],
    )


def into(target: Tree, calculation: str) -> Tree:
    arguments = [target, const(0), {"type": "calculation", "value": calculation}, const((1 << 64) - 1)]
    return {"op": "modify_field_with_hash_based_offset", "parameters": arguments}


def test_hashes_equal_known_values() -> None:
    engine = Engine({})
    engine.load(hashed(list(VALUES)))
    [(_, packet)] = engine.inject(1, SHORT + LONG)
    out = packet[len(SHORT + LONG) :]
    found = {name: int.from_bytes(out[8 * i : 8 * i + 8], "big") for i, name in enumerate(VALUES)}
    assert found == {name: value for name, (_, value) in VALUES.items()}


@pytest.mark.parametrize("algorithm", ["random", "round_robin", "round_robin_consistent"])
def test_unknown_algorithm_is_refused(algorithm: str) -> None:
    with pytest.raises(ProgramError, match=rf"hash algorithm {algorithm} \(of csum16, .*xxh64"):
        Engine({}).load(hashed([algorithm]))
