"""The interface for running a program: the methods that the native engine and the reference share.

`kofn_switch.engine.engine.Engine` documents their effects and errors.
"""

from collections.abc import Sequence
from typing import Protocol

from kofn_switch.compiler.ir.program import Program
from kofn_switch.state.entries import (
    CloneSession,
    Count,
    Digest,
    Entry,
    Key,
    LogReport,
    Member,
    MemberGroup,
    MeterConfig,
    Replica,
)


class Executor(Protocol):
    """A switch without interfaces: a packet goes in, packets come out."""

    @property
    def program(self) -> Program | None:
        """The loaded program's model."""

    def load(self, document: bytes) -> None:
        """Make p4c's JSON the running program."""

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Process one packet and return the outputs."""

    def take_digests(self, timeout_s: float) -> list[Digest]:
        """Return the digests since the last call."""

    def take_reports(self, timeout_s: float) -> list[LogReport]:
        """Return the program's log messages since the last call."""

    def insert(self, entry: Entry) -> None:
        """Add an entry."""

    def modify(self, entry: Entry) -> None:
        """Change an entry."""

    def delete(self, table: str, key: Key, priority: int = 0) -> None:
        """Remove an entry."""

    def entries(self, table: str) -> list[Entry]:
        """Return the entries of a table."""

    def set_default(self, table: str, action: str, parameters: Sequence[int] = ()) -> None:
        """Set the action of a miss."""

    def reset_default(self, table: str) -> None:
        """Return to the program's default action."""

    def default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the default action."""

    def insert_member(self, member: Member) -> None:
        """Add a member to an action profile."""

    def insert_member_group(self, group: MemberGroup) -> None:
        """Add a group to an action profile."""

    def count(self, table: str, key: Key, priority: int = 0) -> Count:
        """Return the direct counter of an entry."""

    def default_count(self, table: str) -> Count:
        """Return the direct counter of the misses."""

    def read_counter(self, name: str, index: int) -> Count:
        """Return one cell of an indirect counter."""

    def write_counter(self, name: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter."""

    def read_register(self, name: str, index: int) -> int:
        """Return one cell of a register array."""

    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell of a register array."""

    def write_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of a meter array."""

    def set_meter(self, table: str, key: Key, priority: int, config: MeterConfig | None) -> None:
        """Configure an entry's direct meter."""

    def set_value_set(self, name: str, keys: Sequence[int]) -> None:
        """Replace the keys of a value set."""

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Create or replace a multicast group."""

    def set_session(self, number: int, session: CloneSession) -> None:
        """Create or replace a clone session."""
