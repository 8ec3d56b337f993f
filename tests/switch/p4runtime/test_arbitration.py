"""Arbitration decides which client may write: its rules without I/O, plain clients on streams, and two finsy
controllers.
"""

import asyncio
from typing import Any

import finsy as fy
import grpc
import pytest
from finsy.proto import U128, p4r, rpc_code

from kofn_switch.p4runtime.arbitration import CLIENTS_MAX, Arbitration, Client
from kofn_switch.p4runtime.refusal import Refused
from tests.switch.p4runtime.harness import DEVICE_ID, Target, action, bid, exact, primary, table_entry, update
from tests.waiting import PATIENCE_S

OK, ALREADY_EXISTS, NOT_FOUND = rpc_code.OK, rpc_code.ALREADY_EXISTS, rpc_code.NOT_FOUND


class Clients:
    """Clients of one arbitration, and the messages to each since the last query."""

    def __init__(self) -> None:
        self.changes = 0
        self.arbitration = Arbitration(DEVICE_ID, on_change=self._count)
        self._told: dict[str, list[tuple[int, int | None]]] = {}
        self._clients: dict[str, Client] = {}

    def bid(self, name: str, election_id: int | None, device_id: int = DEVICE_ID) -> None:
        if name not in self._clients:
            told = self._told.setdefault(name, [])
            self._clients[name] = Client(tell=lambda message: told.append(_seen(message)))
        self.arbitration.update(self._clients[name], bid(election_id, device_id).arbitration)

    def leave(self, name: str) -> None:
        self.arbitration.leave(self._clients[name])

    def told(self, name: str) -> list[tuple[int, int | None]]:
        told, self._told[name][:] = list(self._told[name]), []
        return told

    def may_write(self, election_id: int) -> bool:
        return self.arbitration.may_write(p4r.WriteRequest(election_id=U128.encode(election_id)))

    def _count(self) -> None:
        self.changes += 1


def _seen(message: p4r.StreamMessageResponse) -> tuple[int, int | None]:
    update = message.arbitration
    return update.status.code, U128.decode(update.election_id) if update.HasField("election_id") else None


def test_first_bidder_is_primary() -> None:
    clients = Clients()
    clients.bid("a", 10)
    assert clients.told("a") == [(OK, 10)]
    assert clients.may_write(10)
    assert not clients.may_write(11)


def test_higher_bid_takes_over_and_all_clients_are_notified() -> None:
    clients = Clients()
    clients.bid("a", 10)
    clients.bid("b", 20)
    assert clients.told("a") == [(OK, 10), (ALREADY_EXISTS, 20)]
    assert clients.told("b") == [(OK, 20)]
    assert not clients.may_write(10)
    assert clients.changes == 2


def test_lower_bid_is_a_backup_and_only_it_is_notified() -> None:
    clients = Clients()
    clients.bid("a", 10)
    clients.bid("b", 5)
    assert clients.told("a") == [(OK, 10)]
    assert clients.told("b") == [(ALREADY_EXISTS, 10)]


def test_client_without_an_election_id_never_wins() -> None:
    clients = Clients()
    clients.bid("a", None)
    assert clients.told("a") == [(NOT_FOUND, None)]
    assert not clients.arbitration.may_write(p4r.WriteRequest())


def test_highest_backup_follows_a_primary_that_leaves() -> None:
    clients = Clients()
    for name, election_id in (("a", 20), ("b", 10), ("c", 15)):
        clients.bid(name, election_id)
    clients.leave("a")
    assert clients.told("b") == [(ALREADY_EXISTS, 20), (ALREADY_EXISTS, 15)]
    assert clients.told("c") == [(ALREADY_EXISTS, 20), (OK, 15)]
    assert clients.may_write(15)
    assert clients.changes == 2


def test_no_client_follows_without_an_election_id() -> None:
    clients = Clients()
    clients.bid("a", 20)
    clients.bid("b", None)
    clients.leave("a")
    assert clients.told("b") == [(ALREADY_EXISTS, 20), (NOT_FOUND, 20)]


def test_lower_election_id_than_a_former_primarys_may_win() -> None:
    clients = Clients()
    clients.bid("a", 20)
    clients.leave("a")
    clients.bid("b", 0)
    assert clients.told("b") == [(OK, 0)]
    assert clients.may_write(0)


def test_primary_can_step_down() -> None:
    clients = Clients()
    clients.bid("a", 20)
    clients.bid("b", 10)
    clients.bid("a", 5)
    assert clients.told("a") == [(OK, 20), (ALREADY_EXISTS, 10)]
    assert clients.told("b") == [(ALREADY_EXISTS, 20), (OK, 10)]
    clients.bid("b", None)
    assert clients.told("a") == [(OK, 5)]


def test_used_election_id_is_refused() -> None:
    clients = Clients()
    clients.bid("a", 10)
    with pytest.raises(
        Refused, match="Election id 10 is already used by another client; the primary has election id 10"
    ):
        clients.bid("b", 10)
    clients.bid("a", 10)
    assert clients.told("a") == [(OK, 10), (OK, 10)]


def test_number_of_clients_is_limited() -> None:
    clients = Clients()
    for number in range(CLIENTS_MAX):
        clients.bid(str(number), number)
    with pytest.raises(Refused, match="16 clients are connected"):
        clients.bid("one more", 100)


def test_roles_are_refused() -> None:
    clients = Clients()
    request = bid(1).arbitration
    request.role.name = "sdn"
    with pytest.raises(Refused, match="role 'sdn' is not offered"):
        clients.arbitration.update(Client(tell=print), request)


async def ended(stream: Any) -> tuple[grpc.StatusCode, str]:
    """Return code and message with which the server ends a stream."""
    while True:
        try:
            if await asyncio.wait_for(stream.read(), 10) is grpc.aio.EOF:
                return await stream.code(), await stream.details()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""


def test_used_election_id_ends_the_stream(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            stream = client.stub.StreamChannel()
            await stream.write(bid(client.election_id))
            code, message = await ended(stream)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert message.lower().startswith("election id")

    asyncio.run(scenario())


def test_another_device_id_ends_the_stream(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target, push=False) as client:
            await client.stream.write(bid(client.election_id, DEVICE_ID + 1))
            assert (await ended(client.stream))[0] is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(scenario())


def test_unknown_device_ends_the_stream(embedded: Target) -> None:
    async def scenario() -> None:
        async with embedded.stub() as stub:
            stream = stub.StreamChannel()
            await stream.write(bid(1, 77))
            message = "device id 77 is not known; this switch has device id 1"
            assert await ended(stream) == (grpc.StatusCode.NOT_FOUND, message)

    asyncio.run(scenario())


def test_only_the_primary_writes(target: Target) -> None:
    async def scenario() -> None:
        async with primary(target) as client:
            client.election_id -= 1
            with pytest.raises(grpc.aio.AioRpcError, match="Not primary") as refused:
                await client.write(update("INSERT", table_entry("exacts", exact(b"\1"))))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.aio.AioRpcError, match="Not primary") as refused:
                await client.push()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scenario())


def test_backup_writes_when_the_primary_has_left(target: Target) -> None:
    async def scenario() -> None:
        async with target.stub() as stub:
            backup = stub.StreamChannel()
            async with primary(target) as client:
                await backup.write(bid(client.election_id - 1))
                assert (await backup.read()).arbitration.status.code == ALREADY_EXISTS
            assert (await asyncio.wait_for(backup.read(), 10)).arbitration.status.code == OK
            entry = table_entry("exacts", exact(b"\1"), action=action("TestIngress.drop"))
            request = p4r.WriteRequest(device_id=DEVICE_ID, updates=[update("INSERT", entry)])
            request.election_id.CopyFrom(U128.encode(client.election_id - 1))
            await stub.Write(request, timeout=PATIENCE_S)
            backup.cancel()

    asyncio.run(scenario())


def test_second_controller_takes_over_and_gives_back(target: Target) -> None:
    """p4runtime-shell does this beside a running controller: it reads as a backup, then writes as the primary."""

    async def scenario() -> None:
        async with target.client():
            pass  # pushes the program; the next controller finds it and keeps it
        async with target.client(p4force=False) as controller:
            async with target.stub() as stub:
                stream = stub.StreamChannel()
                await stream.write(bid(1))
                assert (await stream.read()).arbitration.status.code == ALREADY_EXISTS
                stream.cancel()
            assert controller.is_primary
            async with primary(target, push=False) as person:
                await until(lambda: not controller.is_primary)
                entry = table_entry("exacts", exact(b"\7"), action=action("TestIngress.drop"))
                await person.write(update("INSERT", entry))
            await until(lambda: controller.is_primary)
            match = fy.P4TableMatch({"hdr.test.narrow": 7})
            await controller.delete([fy.P4TableEntry("exacts", match=match)])

    asyncio.run(scenario())


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)
