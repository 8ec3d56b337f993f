"""A packet in the switch: its header instances, its unparsed bytes, and the program's requests for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from kofn_switch.compiler.ir.program import Field, HeaderType, Program
from kofn_switch.errors import SwitchError

META = "standard_metadata"
VALID = "$valid$"


class NotDefined(SwitchError):  # noqa: N818 - names the cause
    """The model holds a construct without meaning in the reference; the message names it."""


def undefined(what: object) -> NoReturn:
    raise NotDefined(f"{what} has no meaning in the reference")


def wrap(value: int, width: int, *, signed: bool = False) -> int:
    """Return the value modulo 2**width, as a signed number if `signed`."""
    value &= (1 << width) - 1
    return value - (1 << width) if signed and value >> (width - 1) else value


@dataclass(slots=True)
class Instance:
    """A header of one packet: its fields' values with their signs; `length` is the variable field's, in bits."""

    type: HeaderType
    metadata: bool
    valid: bool = False
    values: dict[str, int] = field(default_factory=dict)
    length: int = 0

    def __post_init__(self) -> None:
        """Make metadata valid, and set all fields to zero."""
        self.valid = self.valid or self.metadata
        if not self.values:
            self.reset()

    def reset(self) -> None:
        self.values = {item.name: 0 for item in self.type.fields}
        self.length = 0

    def copy(self) -> "Instance":
        """Return an independent copy."""
        return replace(self, values=dict(self.values))

    def get(self, name: str) -> int:
        """Return a field's value, even if the header is invalid."""
        return int(self.valid) if name == VALID else self.values[name]

    def set(self, name: str, value: int) -> None:
        """Assign to a field, cut to its width."""
        item = self.type.field(name)
        self.values[name] = wrap(value, self.width_of(item), signed=item.signed)

    def width_of(self, item: Field) -> int:
        """Return the current width of a field, in bits."""
        return self.length if item.variable else item.width

    @property
    def width(self) -> int:
        """The current width of the header on the wire, in bits."""
        return sum(self.width_of(item) for item in self.type.fields)

    def bits(self, name: str) -> str:
        """Return a field as on the wire, as a string of 0 and 1."""
        width = self.width_of(self.type.field(name))
        return format(wrap(self.values[name], width), f"0{width}b") if width else ""

    def emit(self) -> bytes:
        """Return the header as on the wire."""
        return to_bytes("".join(self.bits(item.name) for item in self.type.fields))

    def extract(self, data: bytes, length: int) -> None:
        """Take the fields from the start of `data`; the variable field has `length` bits."""
        self.length = length
        bits, at = to_bits(data), 0
        for item in self.type.fields:
            width = self.width_of(item)
            self.set(item.name, int(bits[at : at + width] or "0", 2))
            at += width


def to_bits(data: bytes) -> str:
    """Return bytes as a string of 0 and 1."""
    return "".join(format(byte, "08b") for byte in data)


def to_bytes(bits: str) -> bytes:
    """Return a string of 0 and 1 as bytes, with zeros appended up to a whole byte."""
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


class Headers:
    """The header instances of one packet, by name, and how many headers of each stack are in use."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._instances = {
            name: Instance(type=header.type, metadata=header.metadata) for name, header in program.headers.items()
        }
        self.next = dict.fromkeys((*program.stacks, *program.union_stacks), 0)

    def __getitem__(self, name: str) -> Instance:
        """Return the instance of that name."""
        return self._instances[name]

    def copy(self) -> "Headers":
        """Return independent copies."""
        other = Headers(self._program)
        other._instances = {name: instance.copy() for name, instance in self._instances.items()}
        other.next = dict(self.next)
        return other

    def reset_metadata(self) -> None:
        for instance in self._instances.values():
            if instance.metadata:
                instance.reset()

    def set_valid(self, name: str, valid: bool) -> None:
        """Make a header valid or not; the other headers of its union become invalid when it becomes valid."""
        if valid:
            for union in self._program.unions.values():
                if name in union.members.values():
                    for member in union.members.values():
                        self._instances[member].valid = False
        self._instances[name].valid = valid or self._instances[name].metadata

    def exchange(self, name: str, other: str) -> None:
        """Exchange the content of two headers of one type."""
        self._instances[name], self._instances[other] = self._instances[other], self._instances[name]

    def union_is_valid(self, name: str) -> bool:
        """Return whether one of a union's headers is valid."""
        return any(self._instances[member].valid for member in self._program.unions[name].members.values())

    @property
    def meta(self) -> Mapping[str, int]:
        """The fields of standard_metadata; those that the program lacks read as zero."""
        return _Zeros(self._instances[META].values)

    def set_meta(self, name: str, value: int) -> None:
        """Set a field of standard_metadata if the program's has it."""
        if name in self._instances[META].values:
            self._instances[META].set(name, value)


class _Zeros(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 0


@dataclass(slots=True)
class Packet:
    """A packet in the switch.

    `arrived` holds the received bytes, `rest` those that the parser has not extracted. `size` is the packet's length as
    the program sees it: that of `arrived`, changed by the headers added and removed since. The program's requests
    (`clone`, `resubmit`, ...) are carried out at the end of the control: a session or field list, None without one.
    """

    port: int
    arrived: bytes
    headers: Headers
    size: int
    rest: bytes = b""
    counted: int = 0  # bytes that counters and meters count
    exited: bool = False
    failed: bool = False
    limit: int | None = None  # bytes that truncate() has left
    clone: tuple[int, int] | None = None  # session, field list
    digest: int | None = None
    resubmit: int | None = None
    recirculate: int | None = None

    @property
    def payload(self) -> bytes:
        """The bytes after the extracted headers, truncated if the program asked for it."""
        return self.rest if self.limit is None else self.rest[: self.limit]

    def copy(self, headers: Headers) -> "Packet":
        """Return another packet with the same bytes and no requests."""
        return Packet(
            port=self.port, arrived=self.arrived, headers=headers, size=self.size, rest=self.rest, counted=self.counted
        )
