"""Hashes over fields and payload: checksums and the `hash` extern."""

from kofn_switch.compiler.codegen import codec
from kofn_switch.compiler.codegen.crc import CRCS
from kofn_switch.compiler.codegen.csum16 import Constant, emit_csum16, validity
from kofn_switch.compiler.codegen.layout import HeaderRef, identifier, literal, mask_of
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.ir.expressions import Expression, FieldOf
from kofn_switch.compiler.ir.program import Calculation, Checksum, Field

SUMS = ("csum16", "cksum16")  # two names of the Internet checksum
PLAIN = ("xor16", "xor32", "identity", "toeplitz", "xxh64", "bmv2_hash", "hash_ex")
ALGORITHMS = (*SUMS, *CRCS, *PLAIN)

Input = tuple[Expression, int]


def emit_hash(low: Lowering, calculation: Calculation, kept: str = "", constant: Constant | None = None) -> str:
    """Return a C expression of the hash, without fields of invalid headers. See emit_csum16 for `kept`."""
    if calculation.algorithm not in ALGORITHMS:
        raise low.refuse(f"hash algorithm {calculation.algorithm} (of {', '.join(ALGORITHMS)})")
    inputs = [part for part in calculation.inputs if part is not None]
    payload = None in calculation.inputs
    if payload and calculation.inputs[-1] is not None:
        raise low.refuse("a checksum with fields after the payload")
    if calculation.algorithm in SUMS and not _has_variable(low, inputs):
        return emit_csum16(low, calculation, kept, constant)
    total = (sum(width for _, width in inputs) + 7) // 8
    name, buffer, used = low.block.name("hash"), low.block.name("bytes"), low.block.name("used")
    low.block.add(f"uint64_t {name}, {used} = {sum(width for _, width in inputs)};")
    if payload:
        low.block.add(f"uint8_t *{buffer} = services(D->core)->reserve(D->core, {total} + D->length);")
    else:
        low.block.add(f"uint8_t {buffer}[{total + 1}];")
    _fill(low, inputs, buffer, used)
    length = f"({used} + 7) / 8"
    if payload:
        low.block.add(f"memcpy({buffer} + {length}, D->packet + D->at, {low.layout.payload_bytes});")
        length = f"{length} + {low.layout.payload_bytes}"
    low.block.add(f"{name} = {_call(low, calculation.algorithm, buffer, length)};")
    return name


def _call(low: Lowering, algorithm: str, data: str, length: str) -> str:
    if algorithm in SUMS:
        return f"hash_csum16({data}, {length})"
    if algorithm not in CRCS:
        return f"hash_{algorithm}({data}, {length})"
    crc = CRCS[algorithm]
    return crc.call(low.block.unit.constant(crc.table()), data, length)


def _has_variable(low: Lowering, inputs: list[Input]) -> bool:
    return any(_variable(low, expression) is not None for expression, _ in inputs)


def _variable(low: Lowering, expression: Expression) -> tuple[HeaderRef, Field] | None:
    """Return header and field of an input that is a variable field."""
    field = low.ranges.field(expression)
    return low.field(expression) if field is not None and field.variable else None


def _fill(low: Lowering, inputs: list[Input], buffer: str, used: str) -> None:
    valid = dict.fromkeys(test for expression, _ in inputs if (test := validity(low, expression)) != "1")
    if _has_variable(low, inputs):
        _fill_valid(low, inputs, buffer, used)
        return
    if not valid:
        _fill_packed(low, inputs, buffer)
        return
    with low.block.braces(f"if ({' && '.join(valid)})"):
        _fill_packed(low, inputs, buffer)
    with low.block.braces("else"):
        _fill_valid(low, inputs, buffer, used)


def _fill_packed(low: Lowering, inputs: list[Input], buffer: str) -> None:
    """Fill the buffer when all headers are valid: every input has a fixed place."""
    parts, offset = [], 0
    for expression, width in inputs:
        value = low.wide(expression, width) if width > 64 else _raw(low, expression, width)
        parts.append(codec.Part(offset=offset, width=width, value=value))
        offset += width
    if offset % 8:
        parts.append(codec.Part(offset=offset, width=8 - offset % 8, value="0"))
    low.block.add(*codec.store(parts, buffer))


def _raw(low: Lowering, expression: Expression, width: int) -> str:
    if isinstance(expression, FieldOf) and expression.field != "$valid$":
        return f"{low.layout.header(expression.header).struct}.{identifier(expression.field)}"
    return low.masked(expression, width)


def _fill_valid(low: Lowering, inputs: list[Input], buffer: str, used: str) -> None:
    low.block.add(f"{used} = 0;", f"memset({buffer}, 0, {(sum(width for _, width in inputs) + 7) // 8});")
    for expression, width in inputs:
        with low.block.braces(f"if ({validity(low, expression)})"):
            field = _variable(low, expression)
            if field is not None:
                ref = field[0]
                value = codec.as_limbs(field[1], ref.struct)
                low.block.add(f"store_variable({buffer}, {used}, {value}, {ref.bits});", f"{used} += {ref.bits};")
                continue
            store = "store_wide" if width > 64 else "store_bits"
            value = low.wide(expression, width) if width > 64 else _raw(low, expression, width)
            order = f"{used}, {value}, {width}"
            low.block.add(f"{store}({buffer}, {order});", f"{used} += {width};")


def _target(low: Lowering, checksum: Checksum) -> HeaderRef:
    ref = low.layout.header(checksum.target.header)
    if ref.type.field(checksum.target.field).width > 64:
        raise low.refuse(f"checksum {checksum.name} in a field of more than 64 bits")
    return ref


def emit_verify(low: Lowering, checksum: Checksum) -> None:
    """Set `bad` when the field is valid, the condition holds and the value is wrong."""
    target = _target(low, checksum)
    condition = "" if checksum.condition is None else f" && {low.truth(checksum.condition)}"
    with low.block.braces(f"if ({target.valid}{condition})"):
        value = emit_hash(low, checksum.calculation)
        low.block.add(f"bad |= {value} != {low.narrow(checksum.target)};")


def emit_update(low: Lowering, checksum: Checksum, kept: str, constant: Constant) -> None:
    """Set the field when the condition holds; `constant` selects inputs that are the same in all copies of a packet."""
    condition = "1" if checksum.condition is None else low.truth(checksum.condition)
    target = _target(low, checksum)
    width = target.type.field(checksum.target.field).width
    with low.block.braces(f"if ({condition})"):
        value = emit_hash(low, checksum.calculation, kept, constant)
        low.block.add(f"{target.struct}.{identifier(checksum.target.field)} = {value} & {literal(mask_of(width))};")
