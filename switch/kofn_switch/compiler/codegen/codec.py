"""Generates C statements that load header fields from packet bytes, and store them.

Fields up to the next byte boundary form a run, which one statement loads or stores if it has at most 64 bits.
"""

from dataclasses import dataclass

from kofn_switch.compiler.codegen.layout import bits_of, c_type, identifier, limbs, literal, mask_of
from kofn_switch.compiler.ir.program import Field, HeaderType


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A field at its bit offset; `value` is its C lvalue or expression (a pointer when wider than 64 bits)."""

    offset: int
    width: int
    value: str


def load_header(kind: HeaderType, base: str, source: str) -> list[str]:
    """Return statements that set the header at the C lvalue `base` from the bytes at `source`.

    The length of the header's variable field must be set before. The length is in bits, and must be a multiple of 8.
    """
    before, variable, after = _split(kind, base)
    lines = load(before, source)
    if variable is not None:
        rest = f"({source} + {base}.{bits_of(variable)} / 8)"
        lines += [_load_variable(variable, base, source, before), *load(after, rest)]
    return lines


def store_header(kind: HeaderType, base: str, to: str) -> list[str]:
    """Return statements that write the header at the C lvalue `base` to the bytes at `to`."""
    before, variable, after = _split(kind, base)
    if variable is None:
        return store(before, to)
    bits, offset = f"{base}.{bits_of(variable)}", _end(before)
    lines = [f"memset({to}, 0, {kind.fixed_width // 8} + {bits} / 8);", *store(before, to)]
    lines += [f"store_variable({to}, {offset}, {as_limbs(variable, base)}, {bits});"]
    return [*lines, *store(after, f"({to} + {bits} / 8)")]


def as_limbs(field: Field, base: str) -> str:
    """Return a pointer to the value of a field as limbs."""
    member = f"{base}.{identifier(field.name)}"
    return f"(uint64_t[]){{{member}}}" if field.width <= 64 else member


def _load_variable(field: Field, base: str, source: str, before: list[Part]) -> str:
    member, bits = f"{base}.{identifier(field.name)}", f"{base}.{bits_of(field)}"
    if field.width > 64:
        return f"load_variable({member}, {limbs(field.width)}, {source}, {_end(before)}, {bits});"
    return f"{member} = ({c_type(field.width)})load_bits({source}, {_end(before)}, {bits});"


def _split(kind: HeaderType, base: str) -> tuple[list[Part], Field | None, list[Part]]:
    """Return the parts before the variable field, that field, and the parts after it.

    The offsets of the parts after the variable field are those for an empty variable field.
    """
    offset, parts, before = 0, list[Part](), list[Part]()
    for field in kind.fields:
        if field.variable:
            before, parts = parts, []
            continue
        parts.append(Part(offset=offset, width=field.width, value=f"{base}.{identifier(field.name)}"))
        offset += field.width
    return (parts, None, []) if kind.variable is None else (before, kind.variable, parts)


def _end(parts: list[Part]) -> int:
    return parts[-1].offset + parts[-1].width if parts else 0


def runs(parts: list[Part]) -> list[list[Part]]:
    """Divide the parts into runs: a run ends with a part that ends on a byte boundary."""
    result: list[list[Part]] = [[]]
    for part in parts:
        result[-1].append(part)
        if (part.offset + part.width) % 8 == 0:
            result.append([])
    return [run for run in result if run]


def load(parts: list[Part], source: str) -> list[str]:
    """Return statements that set the parts from the bytes at the pointer `source`."""
    return [line for run in runs(parts) for line in _load_run(run, source)]


def store(parts: list[Part], to: str) -> list[str]:
    """Return statements that write the parts to the bytes at the pointer `to`; the parts must cover whole bytes."""
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
