"""What control planes put into the switch and get out of it: entries, counts, replicas, digests.

Plain values; integers are unsigned and as wide as the program says.  Knows nothing of P4Runtime's messages.
"""

from dataclasses import dataclass, fields
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The field equals `value`."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ternary:
    """The field equals `value` in the bits set in `mask`; mask 0 matches all, bits outside the mask must be 0."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lpm:
    """The first `prefix_length` bits equal those of `value`; 0 matches all, bits after the prefix must be 0."""

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
    """An indirect table's entry does what the member of its profile does."""

    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRef:
    """An indirect table's entry does what the member does that the selector chooses from the group."""

    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedAction:
    """One of the actions that a selector chooses from; `weight` is how often it is there."""

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

    The higher priority wins, as in P4Runtime; of equal ones that overlap, the one in the lower free place.  Tables
    whose key is all exact, or exact but for one lpm field, have no priorities: 0.  `action` is the action's full name,
    `parameters` are in the action's order; entries of an indirect table have `via` instead.  With an `idle_timeout_ns`
    the entry is reported by `take_idle` when no packet hit it for so long.  `metadata` and `controller_metadata` are
    the control plane's own; so is `typed`, the key as it was typed, with bits beyond its prefix or mask.
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
    """An action with its parameters in an action profile; `id` is the control plane's, from 1."""

    profile: str
    id: int
    action: str
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, which is there `weight` times."""

    member: int
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGroup:
    """Members of an action profile that its selector chooses from; `id` is the control plane's, from 1."""

    profile: str
    id: int
    members: tuple[GroupMember, ...]
    max_size: int = 0  # 0: as large as can be


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterConfig:
    """Rates in packets or bytes a second, bursts in packets or bytes; the committed rate is not above the peak's."""

    committed_rate: float
    committed_burst: int
    peak_rate: float
    peak_burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a counter cell counted."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a packet sent to a multicast group: the port, and what the copy's `egress_rid` is."""

    port: int
    instance: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneSession:
    """Where a clone goes: to `replicas`, or to those of the multicast group `group` if it is not 0.

    A clone is cut to `length` bytes as it leaves, headers included, if that is not 0.
    """

    replicas: tuple[Replica, ...] = ()
    group: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """One message of the program to the control plane: the digest's type name and its fields in order."""

    name: str
    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """A line of the program for the log: a log_msg with its values, or which assertion `failed`."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCounts:
    """What was done to the frames of one port in one direction, by rules for injected faults."""

    dropped: int
    duplicated: int
    corrupted: int
    delayed: int
    reordered: int

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name)} {field.name}" for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortStats:
    """What went through one port, and the faults that were injected on the way into the switch and out of it."""

    received_packets: int
    received_bytes: int
    sent_packets: int
    sent_bytes: int
    faults_in: FaultCounts
    faults_out: FaultCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketTime:
    """Where the time of the thread that moves packets went, but for waiting; in nanoseconds since start."""

    receiving: int
    processing: int
    sending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What the switch did since start; `drops` has every reason by name, also those that did not occur."""

    ports: dict[int, PortStats]
    drops: dict[str, int]
    packet_time: PacketTime
