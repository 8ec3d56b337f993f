"""The engine's tables: entries, default actions, idle timeouts, action profiles."""

import time
from collections.abc import Sequence
from threading import Event

from kofn_switch.engine.controls import Controls
from kofn_switch.native import Words
from kofn_switch.state.entries import Entry, Key, Member, MemberGroup


class TableControls(Controls):
    """The methods that change and read tables and action profiles; see Engine."""

    def __init__(self, core: int) -> None:
        super().__init__(core)
        self._timeouts_changed = Event()

    # Tables

    def insert(self, entry: Entry) -> None:
        """Add an entry.  Raises InvalidEntry, EntryExists, TableFull."""
        with self._lock:
            self._now.insert(entry)
        if entry.idle_timeout_ns:
            self._timeouts_changed.set()

    def insert_plain(self, plans: Words, request: bytes, at: int) -> tuple[int, int]:
        """Carry out the updates of a serialised WriteRequest from byte `at` on, up to the first update that is not
        plain.

        `plans` define plain updates, see runtime/writes.c. Return the number of updates that were carried out, and the
        byte after the update that is not plain.
        """
        with self._lock:
            return self._now.rows.insert_plain(plans, request, at)

    def modify(self, entry: Entry) -> None:
        """Give an entry another action or other parameters; keep its counter. Raise InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.rows.modify(entry)
        if entry.idle_timeout_ns:
            self._timeouts_changed.set()

    def delete(self, table: str, key: Key, priority: int = 0) -> None:
        """Remove an entry.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.delete(table, key, priority)

    def entries(self, table: str, key: Key | None = None) -> list[Entry]:
        """Return a table's entries, or those with `key`, in the order of their places. Const entries are included, the
        default entry is not."""
        with self._lock:
            return self._now.rows.entries(table, key)

    def set_default(self, table: str, action: str, parameters: Sequence[int] = ()) -> None:
        """Set the default action. Raise InvalidEntry, also when the program has a const default action."""
        with self._lock:
            self._now.rows.set_default(table, action, parameters)

    def reset_default(self, table: str) -> None:
        """Return to the program's default action."""
        with self._lock:
            self._now.rows.set_default(table, None, ())

    def default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the default action's full name and parameters; None: a miss does nothing, as in indirect tables."""
        with self._lock:
            return self._now.rows.default(table)

    def entry(self, table: str, key: Key, priority: int = 0) -> Entry:
        """Return the entry with that key. Raise InvalidEntry, EntryNotFound."""
        with self._lock:
            return self._now.rows.find(table, key, priority)

    def entry_at(self, table: str, place: int) -> Entry:
        """Return the entry at `place`. Raise UnknownObject, EntryNotFound."""
        with self._lock:
            return self._now.rows.table(table).at(place)

    def place(self, table: str, key: Key, priority: int = 0) -> int:
        """Return an entry's place, a number that stays the same. A new entry gets the lowest free number. Raise
        InvalidEntry, EntryNotFound."""
        with self._lock:
            return self._now.rows.place_of(table, key, priority)[1]

    # Idle timeouts

    def take_idle(self, timeout_s: float) -> list[Entry]:
        """Return the entries that no packet hit for their idle timeout; wait up to `timeout_s` for the first one.

        An entry that stays idle is returned again after another timeout.
        """
        until = time.monotonic() + timeout_s
        while True:
            with self._lock:
                idle = [] if self._loaded is None else self._loaded.rows.idle.take()
                wait_s = None if self._loaded is None else self._loaded.rows.idle.wait_s()
            left_s = until - time.monotonic()
            if idle or left_s <= 0:
                return idle
            self._timeouts_changed.wait(left_s if wait_s is None else min(left_s, wait_s))
            self._timeouts_changed.clear()

    def time_since_hit(self, table: str, key: Key, priority: int = 0) -> int:
        """Return nanoseconds since a packet hit the entry or it was inserted. Raise InvalidEntry for a table without
        timeouts."""
        with self._lock:
            return self._now.rows.elapsed_ns(table, key, priority)

    # Action profiles

    def insert_member(self, member: Member) -> None:
        """Add a member to an action profile.  Raises InvalidEntry, EntryExists, TableFull."""
        with self._lock:
            self._now.rows.profiles.insert_member(member)

    def modify_member(self, member: Member) -> None:
        """Give a member another action or other parameters.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.rows.profiles.modify_member(member)

    def delete_member(self, profile: str, member_id: int) -> None:
        """Remove a member.  Raises InvalidEntry, EntryNotFound, StillUsed."""
        with self._lock:
            self._now.rows.profiles.profile(profile).remove_member(member_id)

    def members(self, profile: str) -> list[Member]:
        """Return the members of an action profile, without those of entries' action sets."""
        with self._lock:
            return [member for member, _ in self._now.rows.profiles.profile(profile).members.values()]

    def insert_member_group(self, group: MemberGroup) -> None:
        """Add a group to an action profile with a selector.  Raises InvalidEntry, EntryExists, EntryNotFound."""
        with self._lock:
            self._now.rows.profiles.insert_group(group)

    def modify_member_group(self, group: MemberGroup) -> None:
        """Give a group other members.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.rows.profiles.modify_group(group)

    def delete_member_group(self, profile: str, group_id: int) -> None:
        """Remove a group.  Raises InvalidEntry, EntryNotFound, StillUsed."""
        with self._lock:
            self._now.rows.profiles.delete_group(profile, group_id)

    def member_groups(self, profile: str) -> list[MemberGroup]:
        """Return the groups of an action profile, without those of entries' action sets."""
        with self._lock:
            return [group for group, _ in self._now.rows.profiles.profile(profile).groups.values()]

    def profile_use(self, profile: str) -> tuple[int, int]:
        """Return the number of members, and the sum of weights, of all groups and action sets together."""
        with self._lock:
            return self._now.rows.profiles.profile(profile).use()
