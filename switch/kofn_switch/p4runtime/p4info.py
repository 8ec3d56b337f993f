"""Lookups in the p4info of the loaded program, from ids to named objects. A refusal lists the known objects.

The module knows p4.config.v1 messages, but not gRPC, sessions or the engine. Names are the program's full names
(`ingress.slot.jobs`), which p4c's JSON and therefore the engine use, too.
"""

from dataclasses import dataclass
from enum import Enum
from functools import partial

from finsy.proto import p4i, p4t

from kofn_switch.p4runtime.index import Index
from kofn_switch.p4runtime.p4data import DataType, data_type
from kofn_switch.p4runtime.refusal import choices, invalid, not_found, unimplemented


class MatchKind(Enum):
    """The match kind of a key field, by the name of its FieldMatch member."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


NEEDS_PRIORITY = frozenset({MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A match field, an action's parameter or a packet header's field."""

    id: int
    name: str
    width: int  # bits


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyField(Field):
    """One field of a table's key."""

    kind: MatchKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action and its parameters in order."""

    id: int
    name: str
    parameters: Index[Field]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionUse:
    """An action, and its permitted uses in one table."""

    action: Action
    in_entries: bool
    as_default: bool

    @property
    def id(self) -> int:
        return self.action.id

    @property
    def name(self) -> str:
        return self.action.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: its key in order, and the actions of its entries."""

    id: int
    name: str
    key: Index[KeyField]
    actions: Index[ActionUse]
    const_entries: bool  # all entries come from the program
    const_default: bool
    profile_id: int  # 0: the table's entries have actions, without a profile
    idle_timeouts: bool
    size: int
    needs_priority: bool  # whether entries can overlap, so that each entry needs a priority above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """An indirect counter or a register."""

    id: int
    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCounter:
    """A counter of each entry of a table."""

    id: int
    name: str
    table_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter(Array):
    """A meter array; `single_rate`: the peak rate must equal the committed rate."""

    single_rate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectMeter:
    """A meter of each entry of a table."""

    id: int
    name: str
    table_id: int
    single_rate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionProfile:
    """An action profile, or a selector; with `by_members` sizes count members, otherwise sizes are sums of weights."""

    id: int
    name: str
    selector: bool
    size: int
    max_group_size: int  # 0: none is declared
    by_members: bool
    max_member_weight: int  # 0: none is declared
    weighted: bool  # whether clients set weights
    actions: Index[ActionUse]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSet:
    """A parser's value set: its fields in order."""

    id: int
    name: str
    fields: Index[KeyField]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Array):
    """A register array with the type of its cells."""

    type: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestType:
    """A digest with the type of its messages."""

    id: int
    name: str
    type: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketHeader:
    """A @controller_header: the fields in front of a packet from or to the CPU port, in order."""

    id: int
    name: str
    fields: Index[Field]


class P4Info:
    """All lookups of one p4info."""

    def __init__(self, message: p4i.P4Info) -> None:
        """Read the p4info. Raise Refused when it contradicts itself or needs features that this server lacks."""
        info = message.type_info
        self.message = message
        self.actions = Index("action", (_action(item) for item in message.actions))
        self.tables = Index("table", (_table(item, self.actions) for item in message.tables))
        self.counters = Index("counter", (_counter(item) for item in message.counters))
        self.direct_counters = Index("direct counter", (_direct_counter(item) for item in message.direct_counters))
        self.meters = Index("meter", (_meter(item) for item in message.meters))
        self.direct_meters = Index("direct meter", (_direct_meter(item) for item in message.direct_meters))
        self.profiles = Index("action profile", (_profile(item, self.tables) for item in message.action_profiles))
        self.value_sets = Index("value set", (_value_set(item) for item in message.value_sets))
        self.registers = Index("register", (_register(item, info) for item in message.registers))
        self.digests = Index("digest", (_digest(item, info) for item in message.digests), foreign=not_found)
        self.packet_headers = Index("packet header", (_header(i) for i in message.controller_packet_metadata))

    def packet_header(self, name: str) -> PacketHeader | None:
        """Return the header `packet_in` or `packet_out`; None when the program declares none."""
        return next((header for header in self.packet_headers if header.name == name), None)

    def direct_counter_of(self, table: Table) -> DirectCounter | None:
        """Return the table's direct counter; None when it has none."""
        return next((counter for counter in self.direct_counters if counter.table_id == table.id), None)

    def direct_meter_of(self, table: Table) -> DirectMeter | None:
        """Return the table's direct meter; None when it has none."""
        return next((meter for meter in self.direct_meters if meter.table_id == table.id), None)

    def check_counted(self, table: Table) -> None:
        """Raise INVALID_ARGUMENT when the table has no direct counter."""
        if self.direct_counter_of(table) is None:
            having = [self.tables.get(counter.table_id).name for counter in self.direct_counters]
            raise invalid(
                f"table {table.name} has no direct counter; tables that have one: {', '.join(having) or 'none'}"
            )

    def metered(self, table: Table) -> DirectMeter:
        """Return the table's direct meter; INVALID_ARGUMENT when it has none."""
        meter = self.direct_meter_of(table)
        if meter is None:
            having = [self.tables.get(meter.table_id).name for meter in self.direct_meters]
            raise invalid(
                f"table {table.name} has no direct meter; tables that have one: {', '.join(having) or 'none'}"
            )
        return meter


def _action(item: p4i.Action) -> Action:
    owner = f"parameter of action {item.preamble.name}"
    fields = (Field(id=p.id, name=p.name, width=_width(p.bitwidth, f"{owner} {p.name}")) for p in item.params)
    return Action(id=item.preamble.id, name=item.preamble.name, parameters=Index(owner, fields))


def _table(item: p4i.Table, actions: Index[Action]) -> Table:
    name = item.preamble.name
    key = Index(f"match field of table {name}", map(partial(_key_field, name), item.match_fields))
    return Table(
        id=item.preamble.id,
        name=name,
        key=key,
        actions=Index(f"action of table {name}", map(partial(_use, actions), item.action_refs)),
        const_entries=item.is_const_table or item.has_initial_entries,
        const_default=item.const_default_action_id != 0,
        profile_id=item.implementation_id,
        idle_timeouts=item.idle_timeout_behavior != p4i.Table.NO_TIMEOUT,
        size=item.size,
        needs_priority=any(field.kind in NEEDS_PRIORITY for field in key),
    )


def _use(actions: Index[Action], ref: p4i.ActionRef) -> ActionUse:
    return ActionUse(
        action=actions.get(ref.id),
        in_entries=ref.scope != p4i.ActionRef.DEFAULT_ONLY,
        as_default=ref.scope != p4i.ActionRef.TABLE_ONLY,
    )


_KINDS = {
    p4i.MatchField.EXACT: MatchKind.EXACT,
    p4i.MatchField.LPM: MatchKind.LPM,
    p4i.MatchField.TERNARY: MatchKind.TERNARY,
    p4i.MatchField.RANGE: MatchKind.RANGE,
    p4i.MatchField.OPTIONAL: MatchKind.OPTIONAL,
}


def _key_field(table: str, item: p4i.MatchField) -> KeyField:
    what = f"match field {item.name} of table {table}"
    if item.match_type not in _KINDS:
        kind = item.other_match_type or "unset"
        raise unimplemented(f"{what} has match type {kind}; {choices(k.value for k in MatchKind)} is offered")
    return KeyField(id=item.id, name=item.name, width=_width(item.bitwidth, what), kind=_KINDS[item.match_type])


def _width(bits: int, what: str) -> int:
    if bits <= 0:
        raise unimplemented(f"{what} has no width in bits: values translated to strings are not offered")
    return bits


def _counter(item: p4i.Counter) -> Array:
    return Array(id=item.preamble.id, name=item.preamble.name, size=item.size)


def _direct_counter(item: p4i.DirectCounter) -> DirectCounter:
    return DirectCounter(id=item.preamble.id, name=item.preamble.name, table_id=item.direct_table_id)


def _meter(item: p4i.Meter) -> Meter:
    single = item.spec.type != p4i.MeterSpec.TWO_RATE_THREE_COLOR
    return Meter(id=item.preamble.id, name=item.preamble.name, size=item.size, single_rate=single)


def _direct_meter(item: p4i.DirectMeter) -> DirectMeter:
    single = item.spec.type != p4i.MeterSpec.TWO_RATE_THREE_COLOR
    return DirectMeter(id=item.preamble.id, name=item.preamble.name, table_id=item.direct_table_id, single_rate=single)


def _profile(item: p4i.ActionProfile, tables: Index[Table]) -> ActionProfile:
    name = item.preamble.name
    uses = {use.id: use for table_id in item.table_ids for use in tables.get(table_id).actions}
    return ActionProfile(
        id=item.preamble.id,
        name=name,
        selector=item.with_selector,
        size=item.size,
        max_group_size=item.max_group_size,
        by_members=item.HasField("sum_of_members"),
        max_member_weight=item.sum_of_members.max_member_weight,
        weighted=not item.weights_disallowed,
        actions=Index(f"action of action profile {name}", uses.values()),
    )


def _value_set(item: p4i.ValueSet) -> ValueSet:
    name = item.preamble.name
    fields = Index(f"field of value set {name}", map(partial(_key_field, name), item.match))
    for field in fields:
        if field.kind is not MatchKind.EXACT:
            raise unimplemented(
                f"field {field.name} of value set {name} is matched {field.kind.value}; exact is offered"
            )
    return ValueSet(id=item.preamble.id, name=name, fields=fields, size=item.size)


def _register(item: p4i.Register, info: p4t.P4TypeInfo) -> Register:
    name = item.preamble.name
    cell = data_type(item.type_spec, info, f"register {name}")
    return Register(id=item.preamble.id, name=name, size=item.size, type=cell)


def _digest(item: p4i.Digest, info: p4t.P4TypeInfo) -> DigestType:
    name = item.preamble.name
    return DigestType(id=item.preamble.id, name=name, type=data_type(item.type_spec, info, f"digest {name}"))


def _header(item: p4i.ControllerPacketMetadata) -> PacketHeader:
    name = item.preamble.name
    owner = f"metadata field of {name}"
    fields = (Field(id=m.id, name=m.name, width=_width(m.bitwidth, f"{owner} {m.name}")) for m in item.metadata)
    return PacketHeader(id=item.preamble.id, name=name, fields=Index(owner, fields))
