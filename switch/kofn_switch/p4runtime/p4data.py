"""P4Data messages (register cells, digests) from and to flat lists of integers, by the p4info's type specification.

The engine knows values as unsigned integers, one for each leaf of the type in order; this module gives them the shape
that p4info declares: bit, int, bool, serializable enum, and structs and tuples of these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from finsy.proto import p4d, p4t

from kofn_switch.p4runtime import bytestring
from kofn_switch.p4runtime.refusal import invalid, unimplemented


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value: `member` is the P4Data field that carries it."""

    name: str
    member: str  # bitstring, bool or enum_value
    width: int  # bits
    signed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A struct or tuple; `member` is the P4Data field that carries it."""

    name: str
    member: str  # struct or tuple
    parts: tuple["DataType", ...]


DataType = Leaf | Group


def data_type(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    """Return the type of `name`. Raise Refused for a type that this server cannot carry."""
    kind = spec.WhichOneof("type_spec")
    if kind not in _BUILDERS:
        raise unimplemented(f"{name} has type {kind}; one of {', '.join(_BUILDERS)} is offered")
    return _BUILDERS[kind](spec, info, name)


def leaves(of: DataType) -> int:
    """Return the number of integers in a value of this type."""
    return 1 if isinstance(of, Leaf) else sum(leaves(part) for part in of.parts)


def encode(of: DataType, values: Sequence[int]) -> p4d.P4Data:
    """Return the message for the leaves' values, in order."""
    if len(values) != leaves(of):
        raise invalid(f"{of.name} has {leaves(of)} values, not {len(values)}")
    return _encode(of, iter(values))


def decode(of: DataType, data: p4d.P4Data) -> list[int]:
    """Return the leaves' values, in order, as unsigned integers. Raise Refused for a wrong shape or width."""
    present = data.WhichOneof("data")
    if present != of.member:
        raise invalid(f"{of.name} needs data of kind {of.member}, not {present or 'unset'}")
    if isinstance(of, Leaf):
        return [_decode_leaf(of, data)]
    members = getattr(data, of.member).members
    if len(members) != len(of.parts):
        raise invalid(f"{of.name} has {len(of.parts)} members, not {len(members)}")
    return [value for part, member in zip(of.parts, members, strict=True) for value in decode(part, member)]


def _encode(of: DataType, values: Iterator[int]) -> p4d.P4Data:
    data = p4d.P4Data()
    if isinstance(of, Group):
        getattr(data, of.member).members.extend(_encode(part, values) for part in of.parts)
        getattr(data, of.member).SetInParent()
        return data
    value = next(values)
    setattr(data, of.member, bool(value) if of.member == "bool" else _to_bytes(of, value))
    return data


def _to_bytes(of: Leaf, value: int) -> bytes:
    if of.signed:
        return bytestring.encode_signed(value - (1 << of.width) if value >> (of.width - 1) else value)
    return bytestring.encode(value)


def _decode_leaf(of: Leaf, data: p4d.P4Data) -> int:
    if of.member == "bool":
        return int(data.bool)
    raw: bytes = getattr(data, of.member)
    if of.signed:
        return bytestring.decode_signed(raw, of.width, of.name) & ((1 << of.width) - 1)
    return bytestring.decode(raw, of.width, of.name)


Builder = Callable[[p4t.P4DataTypeSpec, p4t.P4TypeInfo, str], DataType]


def _bitstring(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    kind = spec.bitstring.WhichOneof("type_spec")
    if kind == "bit":
        return Leaf(name=name, member="bitstring", width=spec.bitstring.bit.bitwidth)
    if kind == "int":
        width = spec.bitstring.int.bitwidth
        return Leaf(name=name, member="bitstring", width=width, signed=True)
    raise unimplemented(f"{name} has type {kind}; bit or int is offered")


def _bool(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    return Leaf(name=name, member="bool", width=1)


def _tuple(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    parts = (data_type(member, info, f"{name}[{i}]") for i, member in enumerate(spec.tuple.members))
    return Group(name=name, member="tuple", parts=tuple(parts))


def _struct(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    if spec.struct.name not in info.structs:
        raise invalid(f"{name} has type struct {spec.struct.name}, which is not in the p4info's type_info")
    members = info.structs[spec.struct.name].members
    parts = (data_type(member.type_spec, info, f"{name}.{member.name}") for member in members)
    return Group(name=name, member="struct", parts=tuple(parts))


def _enum(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    enum = spec.serializable_enum.name
    if enum not in info.serializable_enums:
        raise invalid(f"{name} has type enum {enum}, which is not in the p4info's type_info")
    width = info.serializable_enums[enum].underlying_type.bitwidth
    return Leaf(name=name, member="enum_value", width=width)


def _new_type(spec: p4t.P4DataTypeSpec, info: p4t.P4TypeInfo, name: str) -> DataType:
    new_type = spec.new_type.name
    if new_type not in info.new_types or info.new_types[new_type].WhichOneof("representation") != "original_type":
        raise unimplemented(f"{name} has type {new_type}: types translated for the controller are not offered")
    return data_type(info.new_types[new_type].original_type, info, name)


_BUILDERS: dict[str, Builder] = {
    "bitstring": _bitstring,
    "bool": _bool,
    "tuple": _tuple,
    "struct": _struct,
    "serializable_enum": _enum,
    "new_type": _new_type,
}
