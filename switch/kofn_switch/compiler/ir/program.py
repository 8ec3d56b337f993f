"""A P4 program as p4c's BMv2 JSON describes it, typed: the model that the code generator and the engine read.

The `reader` makes this model. Everything is a record with a name, except expressions (compiler.ir.expressions).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kofn_switch.compiler.ir.expressions import Expression, FieldOf

WIDTH_MAX = 1 << 14  # bits of a field
PORTS = 512  # v1model's ports are bit<9>
PORT_MAX = PORTS - 1
PRIORITIES = 8  # v1model's priorities are bit<3>
DROP_PORT = PORT_MAX  # the port that drops, by default
STILL_MAX = 1 << 16  # most states that a parser passes in a row without extracting; BMv2 has no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The part of a program's meaning that the switch defines.

    mark_to_drop selects `drop_port`. A packet is dropped unless its standard_metadata.priority is below
    `priority_queues`. `trace` asks for a program that prints its steps, `comments` for P4 lines in its C.
    """

    drop_port: int = DROP_PORT
    priority_queues: int = 1
    trace: bool = False
    comments: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the P4 source."""

    file: str
    line: int
    fragment: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.fragment}" if self.file else "(place not recorded)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A member of a header or struct type; width in bits, the largest for a variable field (varbit)."""

    name: str
    width: int
    signed: bool = False
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderType:
    """A header or struct type."""

    name: str
    fields: tuple[Field, ...]

    @property
    def width(self) -> int:
        """The bits of all fields; a variable field counts with its largest width."""
        return sum(field.width for field in self.fields)

    @property
    def variable(self) -> Field | None:
        """The one variable field that a type may have."""
        return next((field for field in self.fields if field.variable), None)

    @property
    def fixed_width(self) -> int:
        """The bits of all fields except the variable one."""
        return sum(field.width for field in self.fields if not field.variable)

    def field(self, name: str) -> Field:
        """Return the field of that name."""
        return next(field for field in self.fields if field.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """An instance; metadata is always valid and never on the wire."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """An array of headers of one type; `members` are header names."""

    name: str
    type: HeaderType
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderUnion:
    """Headers of which at most one is valid; `members` maps the names in the union's type to header names."""

    name: str
    members: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionStack:
    """An array of unions of one type; `unions` are their names, `types` the members' header types by member name."""

    name: str
    unions: tuple[str, ...]
    types: Mapping[str, HeaderType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One statement of an action, a parser state or a deparser."""

    op: str
    arguments: tuple[Expression, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an action; width in bits."""

    name: str
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action; several may share a name, but ids are unique."""

    id: int
    name: str
    parameters: tuple[Parameter, ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyField:
    """One field of a table's key; `kind` is exact, ternary, lpm, range or valid."""

    name: str
    kind: str
    target: Expression
    width: int
    mask: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstEntry:
    """An entry of the program itself. Its key has a pair for each field: (value, 0), (value, prefix length), (value,
    mask) or (low, high), by the field's kind."""

    key: tuple[tuple[int, int], ...]
    action: int
    parameters: tuple[int, ...]
    priority: int  # BMv2's: the lower wins


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectMeter:
    """A meter of each entry of a table: a hit runs it, and its colour goes to `target` before the action."""

    name: str
    unit: str  # "packets" or "bytes"
    target: FieldOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A match-action table; `next` maps an action's id to the next node, unless `next_on_hit` gives the next node.

    An indirect table has a `profile`: its entries refer to the profile's members or groups, which hold the actions;
    `actions` are the table's own copies of these actions, by name. Without a default action a miss does nothing and
    goes to `next_default`.
    """

    name: str
    key: tuple[KeyField, ...]
    actions: tuple[Action, ...]
    size: int
    counter: str | None  # the direct counter's name
    default_action: int | None
    default_parameters: tuple[int, ...]
    default_const: bool
    entries: tuple[ConstEntry, ...] | None  # not None: the table is immutable
    next: Mapping[int, str | None]
    next_on_hit: tuple[str | None, str | None] | None  # (hit, miss)
    place: Place
    next_default: str | None = None
    profile: str | None = None
    meter: DirectMeter | None = None
    idle_timeouts: bool = False  # entries can have an idle timeout

    @property
    def counted(self) -> bool:
        """Whether the table counts the hits of each entry."""
        return self.counter is not None

    @property
    def may_do_nothing(self) -> bool:
        """Whether a packet may pass the table without an action."""
        return self.profile is not None or self.default_action is None

    @property
    def ordered(self) -> bool:
        return any(field.kind != "exact" for field in self.key)

    @property
    def prioritised(self) -> bool:
        """Whether entries need a priority: no if all key fields are exact, or if one is lpm and all others are
        exact."""
        return any(field.kind not in ("exact", "lpm") for field in self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """An `if` of a control."""

    name: str
    expression: Expression
    then: str | None
    otherwise: str | None
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Ingress or egress: a graph of tables and conditions."""

    name: str
    start: str | None
    tables: Mapping[str, Table]
    conditions: Mapping[str, Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A case of a select. `mask` None means all bits. `value` None means that the case holds always or, with a
    `value_set`, when the key is in this set."""

    value: int | None
    mask: int | None
    next: str | None
    value_set: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSet:
    """A set of keys that the control plane fills: `width` bits each (the select's key without gaps), at most `size`."""

    name: str
    width: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserState:
    """A state: its statements, the key of its select with widths in bits, its cases in order."""

    name: str
    statements: tuple[Primitive, ...]
    key: tuple[tuple[Expression, int], ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A counter (width 0) or register array; width in bits."""

    name: str
    size: int
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """An array of two-rate three-colour meters; `execute_meter` of actions runs a cell."""

    name: str
    size: int
    unit: str  # "packets" or "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnList:
    """The fields of a digest."""

    id: int
    name: str
    elements: tuple[Expression, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldList:
    """The metadata that a clone, a resubmitted or a recirculated packet keeps; its other metadata is zero."""

    id: int
    name: str
    fields: tuple[FieldOf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation:
    """A hash over fields; an input is (expression, width in bits), the payload is None."""

    name: str
    algorithm: str
    inputs: tuple[tuple[Expression, int] | None, ...]
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionProfile:
    """Members (an action with its parameters) that entries of its tables share.

    A profile with a selector also has groups of members: the selector's hash chooses a group's member for each packet.
    """

    name: str
    size: int
    selector: Calculation | None
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """A checksum field that the parser verifies or the deparser updates."""

    name: str
    target: FieldOf
    calculation: Calculation
    verify: bool
    update: bool
    condition: Expression | None
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole program."""

    headers: Mapping[str, Header]
    stacks: Mapping[str, Stack]
    unions: Mapping[str, HeaderUnion]
    union_stacks: Mapping[str, UnionStack]
    errors: Mapping[str, int]
    parser_start: str | None
    states: Mapping[str, ParserState]
    value_sets: Mapping[str, ValueSet]
    deparser: tuple[str, ...]  # headers in their order on the wire
    deparser_statements: tuple[Primitive, ...]  # run after the checksums are updated, before any header is emitted
    actions: Mapping[int, Action]
    ingress: Pipeline
    egress: Pipeline
    counters: tuple[Array, ...]
    registers: tuple[Array, ...]
    digests: tuple[LearnList, ...]
    field_lists: Mapping[int, FieldList]
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    meters: tuple[Meter, ...]
    profiles: Mapping[str, ActionProfile]

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, ingress first; their order numbers them in the generated code."""
        return (*self.ingress.tables.values(), *self.egress.tables.values())

    @property
    def statements(self) -> tuple[Primitive, ...]:
        """All statements that can be executed: of the parser, of the tables' actions, of the deparser."""
        actions = {action.id: action for table in self.tables for action in table.actions}
        parser = (statement for state in self.states.values() for statement in state.statements)
        pipelines = (statement for action in actions.values() for statement in action.primitives)
        return (*parser, *pipelines, *self.deparser_statements)

    def uses(self, *ops: str) -> bool:
        """Return whether a statement is one of these primitives."""
        return any(statement.op in ops for statement in self.statements)

    def field(self, header: str, name: str) -> Field:
        """Return a field of a header instance; `$valid$` is one bit wide."""
        return Field(name=name, width=1) if name == "$valid$" else self.headers[header].type.field(name)
