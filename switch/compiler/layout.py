"""Where a program's headers and metadata lie in the generated C.

`struct state` holds one packet's headers as native integers; its members are named after the program's.  A stack has
one element more than it is deep: an index out of range means that one, which is never valid.
"""

import re
from dataclasses import dataclass

from switch.compiler.program import Field, Header, HeaderType, Program, Stack, Target

META = "standard_metadata"
COPIES = ("clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress", "resubmit", "recirculate")


def limbs(width: int) -> int:
    """64-bit words for `width` bits."""
    return (width + 63) // 64


def c_type(width: int) -> str:
    """The native type of a field of up to 64 bits."""
    return next(f"uint{bits}_t" for bits in (8, 16, 32, 64) if width <= bits)


def literal(value: int) -> str:
    """A 64-bit constant in C; negative values in two's complement."""
    value %= 1 << 64
    return f"UINT64_C({value})" if value < 10 else f"UINT64_C(0x{value:x})"


def mask_of(width: int) -> int:
    """`width` ones."""
    return (1 << width) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRef:
    """A header instance in C: the struct, and its validity byte ("1" for metadata)."""

    struct: str
    valid: str
    type: HeaderType

    @property
    def always(self) -> bool:
        """Whether it cannot be invalid."""
        return self.valid == "1"

    def field(self, field: Field) -> str:
        """The member's lvalue."""
        return f"{self.struct}.{identifier(field.name)}"


def identifier(name: str) -> str:
    """A P4 name as a C member: never a keyword, one-to-one for p4c's names in practice (see `Layout`)."""
    return re.sub(r"\W", "_", name) + "_"


class Layout:
    """Names of everything in `struct state`, which generated functions know as `D`."""

    def __init__(self, program: Program, target: Target | None = None) -> None:
        """Number the headers' validity bytes: single ones first, then each stack's in a row."""
        self.program = program
        self.target = target or Target()
        self.copies = program.uses(*COPIES)
        self.stacks = {name: number for number, name in enumerate(program.stacks)}
        self._member_of = {
            member: (stack, number) for stack in program.stacks.values() for number, member in enumerate(stack.members)
        }
        self._valid: dict[str, int] = {}
        for header in program.headers.values():
            if not header.metadata and header.name not in self._member_of:
                self._valid[header.name] = len(self._valid)
        self.valid_count = len(self._valid)
        self._stack_valid: dict[str, int] = {}
        for stack in program.stacks.values():
            self._stack_valid[stack.name] = self.valid_count
            self.valid_count += len(stack.members) + 1

    def header(self, name: str) -> HeaderRef:
        """A header or metadata instance."""
        header = self.program.headers[name]
        if name in self._member_of:
            stack, number = self._member_of[name]
            return self.element(stack.name, str(number))
        valid = "1" if header.metadata else f"D->valid[{self._valid[name]}]"
        return HeaderRef(struct=f"D->{identifier(name)}", valid=valid, type=header.type)

    def meta(self, field: str, state: str = "D") -> str | None:
        """The lvalue of a field of standard_metadata, None if the program has it not."""
        ref = self.header(META)
        found = next((one for one in ref.type.fields if one.name == field), None)
        return None if found is None else f"{state}->{ref.field(found).removeprefix('D->')}"

    def set_meta(self, field: str, value: str, state: str = "D") -> list[str]:
        """Set a field of standard_metadata to a C expression, if the program has it."""
        member = self.meta(field, state)
        if member is None:
            return []
        return [f"{member} = (uint64_t)({value}) & {literal(mask_of(self.program.field(META, field).width))};"]

    def element(self, stack: str, index: str) -> HeaderRef:
        """The element at the C expression `index`, which is in 0..depth."""
        valid = f"D->valid[{self._stack_valid[stack]} + {index}]"
        return HeaderRef(struct=f"D->{identifier(stack)}[{index}]", valid=valid, type=self.program.stacks[stack].type)

    def in_stack(self, name: str) -> tuple[str, int] | None:
        """The stack and the index of a header that is an element of one."""
        if name not in self._member_of:
            return None
        stack, number = self._member_of[name]
        return stack.name, number

    def next_index(self, stack: str) -> str:
        """The lvalue of a stack's `nextIndex`."""
        return f"D->next[{self.stacks[stack]}]"

    def stack(self, name: str) -> Stack:
        """The stack of that name."""
        return self.program.stacks[name]

    def declarations(self) -> list[str]:
        """The C types: a struct for each header type, and `struct state`."""
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
        stacks = self.program.stacks.values()
        return [f"struct {_tag(header.type)} {identifier(header.name)};" for header in single] + [
            f"struct {_tag(stack.type)} {identifier(stack.name)}[{len(stack.members) + 1}];" for stack in stacks
        ]


def _tag(kind: HeaderType) -> str:
    return f"t_{identifier(kind.name)}"


def _struct(kind: HeaderType) -> list[str]:
    members = [f"    {_member(field)}" for field in sorted(kind.fields, key=lambda field: field.width > 64)]
    return [f"struct {_tag(kind)} {{", *members, *(["    uint8_t empty;"] if not members else []), "};"]


def _member(field: Field) -> str:
    name = identifier(field.name)
    return f"{c_type(field.width)} {name};" if field.width <= 64 else f"uint64_t {name}[{limbs(field.width)}];"


def struct_tag(header: Header | Stack) -> str:
    """The C struct tag of a header's or stack's type."""
    return _tag(header.type)
