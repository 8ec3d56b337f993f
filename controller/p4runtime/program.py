"""The compiled P4 program, and how it gets into a switch that does not run it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import finsy as fy
from finsy.proto import p4r

from kofn.controller.errors import PushError

HANDSHAKE_S = 30.0
LEAVE_S = 2.0  # within which a switch has noticed that a connection was closed
LEAVE_EVERY_S = 0.05

SwitchCredentials: TypeAlias = fy.GRPCCredentialsTLS | None
"""Plaintext if None."""

_BUILD = Path(__file__).parents[2] / "p4src" / "build"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """The compiled P4 program."""

    p4info: Path = _BUILD / "kofn.p4info.txtpb"
    blob: Path = _BUILD / "kofn.json"

    def options(self, device_id: int, *, force: bool, credentials: SwitchCredentials = None) -> fy.SwitchOptions:
        """How finsy shall connect; PushError names a file that is not there."""
        for path in (self.p4info, self.blob):
            if not path.is_file():
                raise PushError(f"{path}: no such file; `make p4` builds it where p4c is installed")
        return fy.SwitchOptions(
            p4info=self.p4info,
            p4blob=self.blob,
            p4force=force,
            device_id=device_id,
            channel_credentials=credentials,
        )

    @property
    def cookie(self) -> int:
        """By what finsy tells programs apart: made of p4info and blob. PushError names a file that is not there."""
        options = self.options(0, force=False)
        return fy.P4Schema(options.p4info, options.p4blob).p4cookie


async def ensure(program: CompiledProgram, address: str, device_id: int, credentials: SwitchCredentials = None) -> bool:
    """Push the program unless the switch runs it already; True: pushed."""
    if await _cookie(address, device_id, credentials) == program.cookie:
        return False
    await push(program, address, device_id, credentials)
    return True


async def push(program: CompiledProgram, address: str, device_id: int, credentials: SwitchCredentials = None) -> None:
    """Push the program: all slots and entries are empty then.

    In connections of their own, because finsy would push again whenever a longer one becomes primary again.
    """
    await _delete_groups(address, device_id, credentials)
    async with _primary(address, program.options(device_id, force=True, credentials=credentials)):
        pass  # finsy has pushed


@contextlib.asynccontextmanager
async def _primary(address: str, options: fy.SwitchOptions) -> AsyncIterator[fy.Switch]:
    """A connection that is primary; PushError when another controller has the switch.

    A switch may take the connection that we have just closed for one that is still there: its election id is ours.
    """
    give_up = time.monotonic() + LEAVE_S
    while True:
        async with asyncio.timeout(HANDSHAKE_S), fy.Switch("switch", address, options) as switch:
            if switch.primary_id != options.initial_election_id or time.monotonic() > give_up:
                check_primary(switch)
            if switch.is_primary:
                yield switch
                return
        await asyncio.sleep(LEAVE_EVERY_S)


async def _cookie(address: str, device_id: int, credentials: SwitchCredentials) -> int | None:
    """The cookie of the program that the switch runs; None where there is none, or none with a cookie."""
    request = p4r.GetForwardingPipelineConfigRequest(
        device_id=device_id, response_type=p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY
    )
    try:
        async with fy.P4Client(address, credentials, wait_for_ready=False) as client:
            reply = await client.request(request)
    except fy.P4ClientError as error:
        if error.is_pipeline_missing:
            return None
        raise
    return reply.config.cookie.cookie if reply.config.HasField("cookie") else None


async def _delete_groups(address: str, device_id: int, credentials: SwitchCredentials) -> None:
    """Delete the multicast groups: BMv2 keeps them through a push but forgets having them, so that inserting one again
    would double its replicas.
    """
    async with _primary(address, fy.SwitchOptions(device_id=device_id, channel_credentials=credentials)) as switch:
        if switch.p4info.exists:
            groups = [group async for group in read(switch, [fy.P4MulticastGroupEntry()])]
            await switch.delete(groups, strict=False)


def check_primary(switch: fy.Switch) -> None:
    """PushError when another controller has the switch."""
    if not switch.is_primary:
        raise PushError(f"another controller with election id {switch.primary_id} is primary")


async def read_all(switch: fy.Switch) -> list[Any]:
    """Read all table entries and multicast groups, except the program's own constant entries."""
    everything = [entity async for entity in read(switch, [fy.P4TableEntry(), fy.P4MulticastGroupEntry()])]
    return [entity for entity in everything if not _is_fixed(entity, switch.p4info)]


def _is_fixed(entity: Any, schema: fy.P4Schema) -> bool:
    """True for default actions and for entries of constant tables (BMv2 does not mark those themselves)."""
    if not isinstance(entity, fy.P4TableEntry):
        return False
    return entity.is_default_action or schema.tables[entity.table_id].is_const


def read(switch: fy.Switch, kinds: list[Any]) -> AsyncIterator[Any]:
    """Entities of these kinds; finsy's own annotation says coroutine where it has an async generator."""
    return cast(AsyncIterator[Any], switch.read(kinds))
