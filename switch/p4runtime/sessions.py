"""CloneSessionEntry: where a program's clones go; the sessions are the engine's."""

from collections.abc import Iterator

import grpc
from finsy.proto import p4r

from switch.engine import SESSION_MAX, Engine
from switch.entries import CloneSession
from switch.p4runtime.cells import UpdateType
from switch.p4runtime.refusal import Refused, invalid, not_found, unimplemented
from switch.p4runtime.replicas import decode_replicas, encode_replicas


class Sessions:
    """The clone sessions as P4Runtime has them."""

    def __init__(self, engine: Engine) -> None:
        """The sessions are the engine's."""
        self._engine = engine

    def write(self, kind: UpdateType, entry: p4r.CloneSessionEntry) -> None:
        """INSERT, MODIFY or DELETE a session; raises SwitchError."""
        number = entry.session_id
        if not 1 <= number <= SESSION_MAX:
            raise invalid(f"clone session {number} is not possible; 1 to {SESSION_MAX} is allowed")
        exists = number in self._engine.sessions()
        if kind == p4r.Update.INSERT and exists:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"clone session {number} exists already; MODIFY it")
        if kind != p4r.Update.INSERT and not exists:
            raise self._absent(number)
        if kind == p4r.Update.DELETE:
            self._engine.delete_session(number)
        else:
            self._engine.set_session(number, _session(entry))

    def read(self, number: int) -> Iterator[p4r.CloneSessionEntry]:
        """One session (NOT_FOUND), or all for number 0."""
        sessions = self._engine.sessions()
        if number and number not in sessions:
            raise self._absent(number)
        for found, session in sorted(sessions.items()):
            if number in (0, found):
                replicas = encode_replicas(session.replicas)
                yield p4r.CloneSessionEntry(session_id=found, replicas=replicas, packet_length_bytes=session.length)

    def _absent(self, number: int) -> Refused:
        return not_found(f"there is no clone session {number}; there are {sorted(self._engine.sessions())}")


def _session(entry: p4r.CloneSessionEntry) -> CloneSession:
    what = f"clone session {entry.session_id}"
    if entry.class_of_service:
        raise unimplemented(f"{what}: class of service {entry.class_of_service} is not offered; 0 is")
    if entry.packet_length_bytes < 0:
        raise invalid(f"{what}: packet_length_bytes is {entry.packet_length_bytes}; it must be 0 (all) or more")
    return CloneSession(replicas=decode_replicas(what, entry.replicas), length=entry.packet_length_bytes)
