"""The layout of a program's headers and metadata in the generated C.

`struct state` holds one packet's headers as native integers; its members are named after the program's. A stack has one
element more than its depth: an index out of range selects this additional element, which is never valid. A stack of
unions is stored as one such array for each member. A variable field is stored as its value and its number of bits.
"""

import re
from dataclasses import dataclass

from kofn_switch.compiler.analysis.keeping import kept_headers
from kofn_switch.compiler.codegen.messages import numbered_messages
from kofn_switch.compiler.ir.program import Field, HeaderType, Program, Stack, Target, UnionStack

META = "standard_metadata"
VECTOR = 8
"""Limbs of a vector, like WIDE_VECTOR of runtime/wide.h. Fields of whole vectors are aligned to a cache line."""
COPIES = ("clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress", "resubmit", "recirculate")


def limbs(width: int) -> int:
    """Return the number of 64-bit words for `width` bits."""
    return (width + 63) // 64


def c_type(width: int) -> str:
    """Return the native type of a field of up to 64 bits."""
    return next(f"uint{bits}_t" for bits in (8, 16, 32, 64) if width <= bits)


def literal(value: int) -> str:
    """Return a 64-bit constant in C; negative values in two's complement."""
    value %= 1 << 64
    return f"UINT64_C({value})" if value < 10 else f"UINT64_C(0x{value:x})"


def mask_of(width: int) -> int:
    """Return `width` ones."""
    return (1 << width) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRef:
    """A header instance in C: the struct, its validity byte ("1" for metadata), and the validity bytes of its rivals in
    a union.

    The header's fields read as 0 unless it is `readable`: valid, or a header that keeps its fields.
    """

    struct: str
    valid: str
    type: HeaderType
    rivals: tuple[str, ...] = ()
    keeps: str = ""

    @property
    def readable(self) -> str:
        return self.keeps or self.valid

    @property
    def always(self) -> bool:
        """Whether the header cannot be invalid."""
        return self.valid == "1"

    def field(self, field: Field) -> str:
        return f"{self.struct}.{identifier(field.name)}"

    @property
    def bits(self) -> str:
        """The number of bits in the variable field, "0" without one."""
        field = self.type.variable
        return "0" if field is None else f"{self.struct}.{bits_of(field)}"

    @property
    def bytes(self) -> str:
        """The number of bytes that the header takes in a packet."""
        if self.type.variable is None:
            return str(self.type.width // 8)
        return f"({self.type.fixed_width // 8} + {self.bits} / 8)"

    def make_valid(self) -> list[str]:
        """Return statements that make the header valid, and the other headers of its union invalid."""
        return [f"{self.valid} = 1;", *(f"{rival} = 0;" for rival in self.rivals)]


def identifier(name: str) -> str:
    """Return a P4 name as a C member: never a keyword, one-to-one for names without two underscores in a row."""
    return re.sub(r"\W", lambda found: "__" if found[0] == "." else f"__{ord(found[0]):x}__", name) + "_"


def bits_of(field: Field) -> str:
    """Return the C member that holds the number of bits in a variable field."""
    return f"{identifier(field.name)}bits"


class Layout:
    """Names of everything in `struct state`, which generated functions know as `D`."""

    def __init__(self, program: Program, target: Target | None = None) -> None:
        """Number the headers' validity bytes: single headers first, then each row."""
        self.program = program
        self.target = target or Target()
        self.copies = program.uses(*COPIES)
        self.messages = numbered_messages(program)
        self.stacks = {name: number for number, name in enumerate([*program.stacks, *program.union_stacks])}
        self.kept = kept_headers(program)
        self._rows = {**program.stacks, **self._columns()}
        self._member_of = {
            member: (row, number) for row in self._rows.values() for number, member in enumerate(row.members)
        }
        self._rivals = {
            member: tuple(other for other in union.members.values() if other != member)
            for union in program.unions.values()
            for member in union.members.values()
        }
        self._valid: dict[str, int] = {}
        for header in program.headers.values():
            if not header.metadata and header.name not in self._member_of:
                self._valid[header.name] = len(self._valid)
        self.valid_count = len(self._valid)
        self._row_valid: dict[str, int] = {}
        for row in self._rows.values():
            self._row_valid[row.name] = self.valid_count
            self.valid_count += len(row.members) + 1

    def _columns(self) -> dict[str, Stack]:
        """Return the members of union stacks: `stack[].member` is that member of each union."""
        unions = self.program.unions
        return {
            _column(stack.name, member): Stack(
                name=_column(stack.name, member),
                type=kind,
                members=tuple(unions[union].members[member] for union in stack.unions),
            )
            for stack in self.program.union_stacks.values()
            for member, kind in stack.types.items()
        }

    def columns(self, stack: UnionStack) -> list[str]:
        """Return the rows that make up a stack of unions."""
        return [_column(stack.name, member) for member in stack.types]

    def depth(self, stack: str) -> int:
        """Return the number of headers or unions that a stack holds."""
        unions = self.program.union_stacks.get(stack)
        return len(self._rows[stack].members) if unions is None else len(unions.unions)

    def header(self, name: str) -> HeaderRef:
        """Return a header or metadata instance."""
        header = self.program.headers[name]
        if name in self._member_of:
            row, number = self._member_of[name]
            return self.element(row.name, str(number))
        valid = "1" if header.metadata else f"D->valid[{self._valid[name]}]"
        rivals = tuple(f"D->valid[{self._valid[other]}]" for other in self._rivals.get(name, ()))
        keeps = "1" if name in self.kept else ""
        return HeaderRef(struct=f"D->{identifier(name)}", valid=valid, type=header.type, rivals=rivals, keeps=keeps)

    def meta(self, field: str, state: str = "D") -> str | None:
        """Return the lvalue of a field of standard_metadata, None if the program does not have it."""
        ref = self.header(META)
        found = next((candidate for candidate in ref.type.fields if candidate.name == field), None)
        return None if found is None else f"{state}->{ref.field(found).removeprefix('D->')}"

    def set_meta(self, field: str, value: str, state: str = "D") -> list[str]:
        """Set a field of standard_metadata to a C expression, if the program has it."""
        member = self.meta(field, state)
        if member is None:
            return []
        return [f"{member} = (uint64_t)({value}) & {literal(mask_of(self.program.field(META, field).width))};"]

    @property
    def payload_bytes(self) -> str:
        """The length of the payload that a checksum covers. A truncated packet counts as if it had no headers."""
        rest = "D->length - D->at"
        return f"({rest} < D->truncate ? {rest} : D->truncate)" if self.program.uses("truncate") else f"({rest})"

    def element(self, row: str, index: str) -> HeaderRef:
        """Return the element of a header stack, or of a member of a union stack, at the C expression `index` in
        0..depth."""
        valid = f"D->valid[{self._row_valid[row]} + {index}]"
        others = {self._member_of[rival][0].name for rival in self.rivals(next(iter(self._rows[row].members), ""))}
        rivals = tuple(f"D->valid[{self._row_valid[other]} + {index}]" for other in sorted(others))
        return HeaderRef(
            struct=f"D->{identifier(row)}[{index}]",
            valid=valid,
            type=self._rows[row].type,
            rivals=rivals,
            keeps=self._keeps(row, index),
        )

    def _keeps(self, row: str, index: str) -> str:
        """Return a C condition: whether an element keeps its fields. It is false for the element that stands for an
        index out of range. Return "" if no element of the row keeps its fields."""
        members = self._rows[row].members
        if not self.kept.intersection(members):
            return ""
        return str(int(int(index) < len(members))) if index.isdigit() else f"({index} < {len(members)})"

    def kept_rows(self) -> list[str]:
        """Return the rows whose headers keep their fields."""
        return [row.name for row in self._rows.values() if self.kept.intersection(row.members)]

    def union_member(self, stack: str, member: str, index: str) -> HeaderRef:
        """Return a member of the union at the C expression `index`, which is in 0..depth."""
        return self.element(_column(stack, member), index)

    def rivals(self, header: str) -> tuple[str, ...]:
        """Return the other headers of a header's union."""
        return self._rivals.get(header, ())

    def in_stack(self, name: str) -> tuple[str, int] | None:
        """Return row and index of a header that is an element of a row."""
        if name not in self._member_of:
            return None
        row, number = self._member_of[name]
        return row.name, number

    def next_index(self, stack: str) -> str:
        """Return the lvalue of a stack's `nextIndex`."""
        return f"D->next[{self.stacks[stack]}]"

    def declarations(self) -> list[str]:
        """Return the C types: a struct for each header type, and `struct state`."""
        types = {header.type.name: header.type for header in self.program.headers.values()}
        lines = [line for kind in types.values() for line in _struct(kind)]
        lines += ["struct state {", "    struct core *core;", "    struct instance *in;", "    const uint8_t *packet;"]
        lines += ["    const uint8_t *tail;", "    uint32_t tail_bytes;", "    uint64_t flushes;"]
        lines += ["    uint32_t length, at, size, truncate, learn;", "    uint8_t exit;"]
        if self.copies:
            lines += ["    uint32_t port, clone, clone_list, resubmit, recirculate;", "    uint8_t held;"]
        checksums = len(self.program.checksums) + 1
        lines += [f"    uint64_t sums[{checksums}];", f"    uint8_t summed[{checksums}];"]
        lines += [f"    uint8_t valid[{self.valid_count + 1}];", f"    uint32_t next[{len(self.stacks) + 1}];"]
        lines += [f"    {member}" for member in self._members()]
        return [*lines, "};"]

    def _members(self) -> list[str]:
        single = [header for header in self.program.headers.values() if header.name not in self._member_of]
        return [f"struct {_tag(header.type)} {identifier(header.name)};" for header in single] + [
            f"struct {_tag(row.type)} {identifier(row.name)}[{len(row.members) + 1}];" for row in self._rows.values()
        ]


def _tag(kind: HeaderType) -> str:
    return f"t_{identifier(kind.name)}"


def _struct(kind: HeaderType) -> list[str]:
    members = [f"    {_member(field)}" for field in sorted(kind.fields, key=lambda field: field.width > 64)]
    members += [f"    uint32_t {bits_of(field)};" for field in kind.fields if field.variable]
    return [f"struct {_tag(kind)} {{", *members, *(["    uint8_t empty;"] if not members else []), "};"]


def _member(field: Field) -> str:
    name = identifier(field.name)
    if field.width <= 64:
        return f"{c_type(field.width)} {name};"
    aligned = f" __attribute__((aligned({VECTOR * 8})))" if limbs(field.width) % VECTOR == 0 else ""
    return f"uint64_t {name}[{limbs(field.width)}]{aligned};"


def _column(stack: str, member: str) -> str:
    return f"{stack}[].{member}"
