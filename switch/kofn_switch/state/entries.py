"""Records that control planes write to and read from the switch: entries, counts, replicas, digests.

The records are plain values, independent of P4Runtime's messages. Integers are unsigned, and as wide as in the program.
"""

from dataclasses import dataclass, fields
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The field equals `value`."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ternary:
    """The field equals `value` in the bits that are set in `mask`. Mask 0 matches all; other bits of `value` must be
    0."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lpm:
    """The first `prefix_length` bits equal the bits of `value`. Length 0 matches all; further bits of `value` must be
    0."""

    value: int
    prefix_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The field lies between `low` and `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Optional:
    """The field equals `value`; None matches all."""

    value: int | None


Match: TypeAlias = Exact | Ternary | Lpm | Range | Optional
Key: TypeAlias = tuple[Match, ...]  # in the order of the table's key


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRef:
    """A reference to a member of the table's profile, whose action the entry runs."""

    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRef:
    """A reference to a group, from which the selector chooses the member."""

    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedAction:
    """One of a selector's actions, which gets a share of the packets by its `weight`."""

    action: str
    parameters: tuple[int, ...] = ()
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSet:
    """Members and a group that belong to one entry ("one shot")."""

    actions: tuple[WeightedAction, ...]


Via: TypeAlias = MemberRef | GroupRef | ActionSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of a table.

    The entry with the highest priority wins, as in P4Runtime; if priorities are equal, the entry in the lowest place.
    The priority is 0 in a table whose key fields are all exact, or exact with one lpm field. `action` is the action's
    full name, `parameters` are in the action's order; an entry of an indirect table has `via` instead of both.
    `take_idle` reports an entry with an `idle_timeout_ns` if no packet hits the entry for that time. `metadata` and
    `controller_metadata` belong to the control plane; so does `typed`, the key as a user typed it, with bits beyond its
    prefix or mask.
    """

    table: str
    key: Key
    priority: int = 0
    action: str = ""
    parameters: tuple[int, ...] = ()
    via: Via | None = None
    idle_timeout_ns: int = 0
    metadata: bytes = b""
    controller_metadata: int = 0
    typed: Key = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An action with its parameters in an action profile; the control plane sets `id`, from 1."""

    profile: str
    id: int
    action: str
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, which counts `weight` times."""

    member: int
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGroup:
    """A group of an action profile's members, from which the selector chooses; the control plane sets `id`, from 1."""

    profile: str
    id: int
    members: tuple[GroupMember, ...]
    max_size: int = 0  # 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterConfig:
    """Rates in packets or bytes a second, bursts in packets or bytes; the peak rate is at least the committed rate."""

    committed_rate: float
    committed_burst: int
    peak_rate: float
    peak_burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The counts of a counter's cell."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a packet to a multicast group: its port and its `egress_rid`."""

    port: int
    instance: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneSession:
    """The destinations of a clone: `replicas`, or the replicas of the multicast group `group` if `group` is not 0.

    If `length` is not 0, a clone is cut to `length` bytes, headers included, when it leaves.
    """

    replicas: tuple[Replica, ...] = ()
    group: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A message of the program to the control plane: the digest's type name and its fields in order."""

    name: str
    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """A line of the program for the log: a log_msg with its values, or an assertion that `failed`."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCounts:
    """The injected faults of one port in one direction, in frames."""

    dropped: int
    duplicated: int
    corrupted: int
    delayed: int
    reordered: int

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name)} {field.name}" for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStats:
    """The traffic of one port, and the faults injected on the way into the switch and out of it."""

    received_packets: int
    received_bytes: int
    sent_packets: int
    sent_bytes: int
    faults_in: FaultCounts
    faults_out: FaultCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketTime:
    """The packet thread's time without waiting, in nanoseconds since start."""

    receiving: int
    processing: int
    sending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The switch's counts since start; `drops` has every reason by name, also reasons that did not occur (0)."""

    ports: dict[int, PortStats]
    drops: dict[str, int]
    packet_time: PacketTime
