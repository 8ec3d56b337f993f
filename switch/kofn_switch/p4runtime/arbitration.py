"""The client that may write: P4Runtime's client arbitration for one device and the default role.

This module does no I/O: messages to a client go through `Client.tell`, within the call that causes them. The rules are
those of the specification's "Client Arbitration and Controller Replication", except one that follows BMv2: the primary
is the connected client with the highest election id, so that a backup follows a primary that leaves. (In the
specification the switch remembers the highest id ever seen, and has no primary until a client bids that id.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import grpc
from finsy.proto import U128, p4r, rpc_code

from kofn_switch.p4runtime.refusal import Refused, invalid, not_found, unimplemented, unready

CLIENTS_MAX = 16


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """One client's stream: the client's bid, and the function that sends messages to the client."""

    tell: Callable[[p4r.StreamMessageResponse], None]
    election_id: int | None = None  # None: never primary
    admitted: bool = field(default=False)


class Arbitration:
    """The clients of one device, and the primary among them."""

    def __init__(self, device_id: int, on_change: Callable[[], None] = lambda: None) -> None:
        """Call `on_change` whenever another client (or none) has become primary."""
        self.device_id = device_id
        self.primary: Client | None = None
        self._clients: list[Client] = []
        self._last_primary_id: int | None = None
        self._on_change = on_change

    def may_write(self, request: p4r.WriteRequest | p4r.SetForwardingPipelineConfigRequest) -> bool:
        """Return whether the request carries the primary's election id."""
        if self.primary is None or not request.HasField("election_id"):
            return False
        return U128.decode(request.election_id) == self.primary.election_id

    def update(self, client: Client, request: p4r.MasterArbitrationUpdate) -> None:
        """Handle a client's bid. Raise Refused if the client's stream must end."""
        self._check(client, request)
        election_id = U128.decode(request.election_id) if request.HasField("election_id") else None
        self._check_unused(client, election_id)
        if not client.admitted:
            self._admit(client)
        client.election_id = election_id
        if self._choose():
            return
        if client is self.primary:
            self._last_primary_id = election_id
            self._notify_all()
        else:
            self._notify(client)

    def leave(self, client: Client) -> None:
        """Remove a client whose stream has ended."""
        if client in self._clients:
            self._clients.remove(client)
            self._choose()

    def describe(self) -> str:
        """Return the primary's election id as text for messages."""
        if self.primary is None:
            return "there is no primary"
        return f"the primary has election id {self.primary.election_id}"

    def _check(self, client: Client, request: p4r.MasterArbitrationUpdate) -> None:
        if request.device_id != self.device_id:
            message = f"device id {request.device_id} is not known; this switch has device id {self.device_id}"
            raise unready(message) if client.admitted else not_found(message)
        if request.role.name:
            raise unimplemented(f"role {request.role.name!r} is not offered; leave the role unset for full access")
        if request.role.HasField("config"):
            raise invalid("a role configuration is not understood; leave role.config unset for full access")

    def _check_unused(self, client: Client, election_id: int | None) -> None:
        if election_id is None:
            return
        if any(other.election_id == election_id for other in self._clients if other is not client):
            raise invalid(f"Election id {election_id} is already used by another client; {self.describe()}")

    def _admit(self, client: Client) -> None:
        if len(self._clients) >= CLIENTS_MAX:
            message = f"{len(self._clients)} clients are connected, and no more fit"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        client.admitted = True
        self._clients.append(client)

    def _choose(self) -> bool:
        """Choose the primary. If it changes, tell all clients and return True."""
        bidders = [client for client in self._clients if client.election_id is not None]
        highest = max(bidders, key=attrgetter("election_id"), default=None)
        if highest is self.primary:
            return False
        self.primary = highest
        self._last_primary_id = self._last_primary_id if highest is None else highest.election_id
        self._notify_all()
        self._on_change()
        return True

    def _notify_all(self) -> None:
        """Tell all clients; a new primary last, after the others know."""
        for client in self._clients:
            if client is not self.primary:
                self._notify(client)
        if self.primary is not None:
            self._notify(self.primary)

    def _notify(self, client: Client) -> None:
        update = p4r.MasterArbitrationUpdate(device_id=self.device_id)
        if self._last_primary_id is not None:
            update.election_id.CopyFrom(U128.encode(self._last_primary_id))
        if client is self.primary:
            update.status.code, update.status.message = rpc_code.OK, "Is primary"
        elif self.primary is not None:
            update.status.code, update.status.message = rpc_code.ALREADY_EXISTS, "Is backup"
        else:
            update.status.code, update.status.message = rpc_code.NOT_FOUND, "There is no primary"
        client.tell(p4r.StreamMessageResponse(arbitration=update))
