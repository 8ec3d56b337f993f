"""Header fields from packet bytes and back, a run of fields that ends on a byte boundary at a time."""

from dataclasses import dataclass

from switch.compiler.layout import identifier, limbs, literal, mask_of
from switch.compiler.program import HeaderType


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A field at its bit offset; `value` is its C lvalue or expression (a pointer when wider than 64 bits)."""

    offset: int
    width: int
    value: str


def parts_of(kind: HeaderType, base: str) -> list[Part]:
    """The fields of a header that lies at the C lvalue `base`."""
    offset, parts = 0, []
    for field in kind.fields:
        parts.append(Part(offset=offset, width=field.width, value=f"{base}.{identifier(field.name)}"))
        offset += field.width
    return parts


def runs(parts: list[Part]) -> list[list[Part]]:
    """The parts cut wherever one ends on a byte boundary."""
    result: list[list[Part]] = [[]]
    for part in parts:
        result[-1].append(part)
        if (part.offset + part.width) % 8 == 0:
            result.append([])
    return [run for run in result if run]


def load(parts: list[Part], source: str) -> list[str]:
    """Statements that set the parts from the bytes at the pointer `source`."""
    return [line for run in runs(parts) for line in _load_run(run, source)]


def store(parts: list[Part], to: str) -> list[str]:
    """Statements that write the parts to the bytes at the pointer `to`; whole bytes must be covered."""
    return [line for run in runs(parts) for line in _store_run(run, to)]


def _load_run(run: list[Part], source: str) -> list[str]:
    bits, first = sum(part.width for part in run), run[0].offset
    if bits > 64 or first % 8 or bits % 8:
        return [_load_part(part, source) for part in run]
    number = f"load_bytes({source} + {first // 8}, {bits // 8})"
    if len(run) == 1:
        return [f"{run[0].value} = {number};"]
    lines = [f"const uint64_t run = {number};"]
    for part in run:
        shift = first + bits - part.offset - part.width
        lines.append(f"{part.value} = run >> {shift} & {literal(mask_of(part.width))};")
    return ["{", *[f"    {line}" for line in lines], "}"]


def _load_part(part: Part, source: str) -> str:
    if part.width <= 64:
        return f"{part.value} = load_bits({source}, {part.offset}, {part.width});"
    if part.offset % 8 == 0 and part.width % 64 == 0:
        return f"load_words({part.value}, {source} + {part.offset // 8}, {limbs(part.width)});"
    return f"load_wide({part.value}, {source}, {part.offset}, {part.width});"


def _store_run(run: list[Part], to: str) -> list[str]:
    bits, first = sum(part.width for part in run), run[0].offset
    if bits > 64 or first % 8 or bits % 8:
        return [_store_part(part, to) for part in run]
    terms = []
    for part in run:
        shift = first + bits - part.offset - part.width
        terms.append(f"(uint64_t){part.value} << {shift}" if shift else f"(uint64_t){part.value}")
    return [f"store_bytes({to} + {first // 8}, {' | '.join(terms)}, {bits // 8});"]


def _store_part(part: Part, to: str) -> str:
    if part.width <= 64:
        return f"store_bits({to}, {part.offset}, {part.value}, {part.width});"
    if part.offset % 8 == 0 and part.width % 64 == 0:
        return f"store_words({to} + {part.offset // 8}, {part.value}, {limbs(part.width)});"
    return f"store_wide({to}, {part.offset}, {part.value}, {part.width});"
