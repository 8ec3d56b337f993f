"""The engine's multicast groups and clone sessions, which determine where copies of packets go."""

import ctypes
from collections.abc import Sequence

from kofn_switch import structs
from kofn_switch.compiler.ir.program import PORT_MAX
from kofn_switch.engine.controls import Controls
from kofn_switch.errors import EntryNotFound, InvalidEntry
from kofn_switch.state.entries import CloneSession, Replica

GROUP_MAX = 0xFFFF
INSTANCE_MAX = 0xFFFF
SESSION_MAX = 0x7FFF
LENGTH_MAX = 0xFFFFFFFF


class CopyControls(Controls):
    """Changes and reads multicast groups and clone sessions; a part of Engine."""

    def __init__(self, core: int) -> None:
        super().__init__(core)
        self._groups: dict[int, tuple[Replica, ...]] = {}
        self._sessions: dict[int, CloneSession] = {}
        self._lasting_groups: set[int] = set()
        self._lasting_sessions: set[int] = set()

    def _forget_copies(self) -> None:
        """Remove all groups and sessions that do not last. The caller holds the lock."""
        for group in self._groups.keys() - self._lasting_groups:
            self._remove_group(group)
        for session in self._sessions.keys() - self._lasting_sessions:
            self._remove_session(session)

    def _forget_groups(self) -> None:
        for group in [*self._groups]:
            self._remove_group(group)

    def _remove_group(self, group: int) -> None:
        self._native.core_set_group(self._core, group, None, 0)
        del self._groups[group]
        self._lasting_groups.discard(group)

    def _remove_session(self, number: int) -> None:
        self._native.core_set_session(self._core, number, 0, 0, None, 0)
        del self._sessions[number]
        self._lasting_sessions.discard(number)

    def set_group(self, group: int, replicas: Sequence[Replica], *, lasting: bool = False) -> None:
        """Create or replace a multicast group (1..65535). Raises InvalidEntry.

        A lasting group stays when a program is loaded.
        """
        if not 0 < group <= GROUP_MAX:
            raise InvalidEntry(f"multicast group {group} is not in 1..{GROUP_MAX}")
        array = _replicas(replicas)
        with self._lock:
            self._native.core_set_group(self._core, group, array, len(replicas))
            self._groups[group] = tuple(replicas)
            _note(self._lasting_groups, group, lasting)

    def delete_group(self, group: int) -> None:
        """Remove a multicast group.  Raises EntryNotFound."""
        with self._lock:
            if group not in self._groups:
                raise EntryNotFound(f"there is no multicast group {group}")
            self._remove_group(group)

    def group(self, group: int) -> tuple[Replica, ...]:
        """Return the replicas of a multicast group. Raises EntryNotFound."""
        with self._lock:
            if group not in self._groups:
                raise EntryNotFound(f"there is no multicast group {group}")
            return self._groups[group]

    def groups(self, *, lasting: bool = True) -> dict[int, tuple[Replica, ...]]:
        """Return the replicas of all multicast groups; without `lasting`, only of groups that do not last."""
        with self._lock:
            return {
                number: self._groups[number] for number in self._groups if lasting or number not in self._lasting_groups
            }

    def set_session(self, number: int, session: CloneSession, *, lasting: bool = False) -> None:
        """Create or replace a clone session (0..32767): a group or replicas, and a length. Raises InvalidEntry.

        A lasting session stays when a program is loaded.
        """
        if not 0 <= number <= SESSION_MAX:
            raise InvalidEntry(f"clone session {number} is not in 0..{SESSION_MAX}")
        if session.group and session.replicas:
            raise InvalidEntry(f"clone session {number} must not have both a multicast group and replicas")
        if not 0 <= session.group <= GROUP_MAX or not 0 <= session.length <= LENGTH_MAX:
            raise InvalidEntry(f"group must be 0..{GROUP_MAX} and length 0..{LENGTH_MAX}, got {session}")
        array, size = _replicas(session.replicas), len(session.replicas)
        with self._lock:
            self._native.core_set_session(self._core, number, session.group, session.length, array, size)
            self._sessions[number] = session
            _note(self._lasting_sessions, number, lasting)

    def delete_session(self, number: int) -> None:
        """Remove a clone session.  Raises EntryNotFound."""
        with self._lock:
            if number not in self._sessions:
                raise EntryNotFound(f"there is no clone session {number}")
            self._remove_session(number)

    def sessions(self, *, lasting: bool = True) -> dict[int, CloneSession]:
        """Return all clone sessions; without `lasting`, only sessions that do not last."""
        with self._lock:
            return {
                number: self._sessions[number]
                for number in self._sessions
                if lasting or number not in self._lasting_sessions
            }


def _note(numbers: set[int], number: int, lasting: bool) -> None:
    if lasting:
        numbers.add(number)
    else:
        numbers.discard(number)


def _replicas(replicas: Sequence[Replica]) -> ctypes.Array[structs.Replica]:
    for replica in replicas:
        if not 0 <= replica.port <= PORT_MAX or not 0 <= replica.instance <= INSTANCE_MAX:
            raise InvalidEntry(f"{replica}: port 0..{PORT_MAX}, instance 0..{INSTANCE_MAX}")
    return (structs.Replica * max(1, len(replicas)))(
        *(structs.Replica(replica.port, replica.instance) for replica in replicas)
    )
