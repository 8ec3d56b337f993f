"""The compiled P4 program, and how the controller pushes it to a switch."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import finsy as fy
from finsy.proto import p4r

from kofn_common.places import folder_of
from kofn_controller.errors import PushError

HANDSHAKE_S = 30.0
LEAVE_S = 2.0  # maximum time until a switch notices that a connection was closed
LEAVE_EVERY_S = 0.05

SwitchCredentials: TypeAlias = fy.GRPCCredentialsTLS | None
"""The client's credentials; None: plaintext."""

_BUILD = folder_of("kofn_p4src") / "build"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """The files that p4c writes."""

    p4info: Path = _BUILD / "kofn.p4info.txtpb"
    blob: Path = _BUILD / "kofn.json"

    def options(self, device_id: int, *, force: bool, credentials: SwitchCredentials = None) -> fy.SwitchOptions:
        """Return finsy's options for a connection with this program; PushError names a missing file."""
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
        """The number by which finsy identifies the program, made from p4info and blob. PushError names a missing
        file."""
        options = self.options(0, force=False)
        return fy.P4Schema(options.p4info, options.p4blob).p4cookie


async def ensure(program: CompiledProgram, address: str, device_id: int, credentials: SwitchCredentials = None) -> bool:
    """Push the program unless the switch runs it already; return whether it was pushed."""
    if await _cookie(address, device_id, credentials) == program.cookie:
        return False
    await push(program, address, device_id, credentials)
    return True


async def push(program: CompiledProgram, address: str, device_id: int, credentials: SwitchCredentials = None) -> None:
    """Push the program, which empties all slots and tables.

    The push uses separate connections, because finsy pushes again whenever a connection with these options becomes
    primary.
    """
    await _delete_groups(address, device_id, credentials)
    async with _primary(address, program.options(device_id, force=True, credentials=credentials)):
        pass  # finsy has pushed


@contextlib.asynccontextmanager
async def _primary(address: str, options: fy.SwitchOptions) -> AsyncIterator[fy.Switch]:
    """Open a primary connection; PushError if another controller is primary.

    The switch may not have noticed yet that an earlier connection of this controller, with the same election id, was
    closed. So the call is repeated for LEAVE_S.
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
    """Return the cookie of the switch's program; None if the switch has no program, or a program without a cookie."""
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
    """Delete the multicast groups. After a push BMv2 still has their replicas but no longer lists them, so that another
    insertion would double the replicas.
    """
    async with _primary(address, fy.SwitchOptions(device_id=device_id, channel_credentials=credentials)) as switch:
        if switch.p4info.exists:
            groups = [group async for group in read(switch, [fy.P4MulticastGroupEntry()])]
            await switch.delete(groups, strict=False)


def check_primary(switch: fy.Switch) -> None:
    """Raise PushError if another controller is primary."""
    if not switch.is_primary:
        raise PushError(f"another controller with election id {switch.primary_id} is primary")


async def read_all(switch: fy.Switch) -> list[Any]:
    """Read all table entries and multicast groups, except the program's own constant entries."""
    everything = [entity async for entity in read(switch, [fy.P4TableEntry(), fy.P4MulticastGroupEntry()])]
    return [entity for entity in everything if not _is_fixed(entity, switch.p4info)]


def _is_fixed(entity: Any, schema: fy.P4Schema) -> bool:
    """Return whether an entity is a default action or an entry of a constant table, which BMv2 does not mark."""
    if not isinstance(entity, fy.P4TableEntry):
        return False
    return entity.is_default_action or schema.tables[entity.table_id].is_const


def read(switch: fy.Switch, kinds: list[Any]) -> AsyncIterator[Any]:
    """Read all entities of these kinds. The cast corrects finsy's annotation: it returns an async generator."""
    return cast(AsyncIterator[Any], switch.read(kinds))
