"""Randomly changed P4Runtime messages: each is answered, at worst with an error that P4Runtime defines."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from finsy.proto import p4i, p4r
from google.protobuf import text_format
from google.protobuf.message import Message

from kofn_switch.p4runtime.service import P4RuntimeService
from tests.switch.fuzz.mutations import changed_message
from tests.switch.fuzz.programs import Subject
from tests.switch.fuzz.requests import DEVICE_ID, HIGHEST, entities

PATIENCE_S = 60
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}
"""Codes that a switch never returns, since they mean a fault in the switch."""


class AbortedError(Exception):
    """A refusal, like the one that gRPC raises in context.abort."""


class Context:
    """gRPC's context of a call, for the service."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Refuse the call. UNKNOWN is for batches only, which carry more details."""
        assert code not in NEVER, details
        assert code is not grpc.StatusCode.UNKNOWN or trailing_metadata, details
        raise AbortedError(details)


def run(subjects: Sequence[Subject], *, seconds: float, chance: random.Random) -> None:
    """Run each program for its share of the time. Raises unexpected errors of the service."""
    logging.getLogger("switch").setLevel(logging.ERROR)  # refusals are warnings
    for subject in subjects:
        asyncio.run(_run(subject, seconds / len(subjects), chance))


async def _run(subject: Subject, seconds: float, chance: random.Random) -> None:
    engine, packets = subject.load()
    client = await _connect(P4RuntimeService(engine, DEVICE_ID), subject)
    end, calls, refused = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        await asyncio.sleep(0)
        calls += 1
        refused += not await asyncio.wait_for(client.call(chance), PATIENCE_S)
        engine.inject(*chance.choice(packets))
    assert await client.answers("Read", client.everything()), "the switch must still list its entries"
    client.ended.set()
    await client.session
    print(f"messages, {subject.name}: {calls:,} calls, {refused:,} refused", flush=True)
    assert 0 < refused < calls, "some messages must be accepted, and some refused"


@dataclass(kw_only=True)
class Client:
    """The primary controller of a service that is called without gRPC."""

    service: P4RuntimeService
    info: p4i.P4Info
    config: p4r.SetForwardingPipelineConfigRequest
    ended: asyncio.Event
    session: asyncio.Task[None]

    async def call(self, chance: random.Random) -> bool:
        """Make one random request with random changes; return whether it was carried out."""
        kind: Callable[[random.Random], tuple[str, Message]] = chance.choices(
            (self._write, self._read, self._push, self._say), weights=(60, 20, 1, 10)
        )[0]
        name, message = kind(chance)
        return await self.answers(name, changed_message(message, chance, chance.choice((0, 1, 1, 2, 4))))

    def everything(self) -> p4r.ReadRequest:
        """Return a request for all entries of all tables."""
        return p4r.ReadRequest(device_id=DEVICE_ID, entities=[p4r.Entity(table_entry=p4r.TableEntry())])

    def _write(self, chance: random.Random) -> tuple[str, Message]:
        request = p4r.WriteRequest(device_id=DEVICE_ID, election_id=HIGHEST)
        every = list(entities(self.info, chance))
        for entity in chance.sample(every, min(len(every), chance.randint(1, 4))):
            request.updates.add(type=chance.choice(p4r.Update.Type.values()), entity=entity)
        return "Write", request

    def _read(self, chance: random.Random) -> tuple[str, Message]:
        every = [*entities(self.info, chance), *self.everything().entities]
        return "Read", p4r.ReadRequest(device_id=DEVICE_ID, entities=[chance.choice(every)])

    def _push(self, chance: random.Random) -> tuple[str, Message]:
        return "SetForwardingPipelineConfig", self.config

    def _say(self, chance: random.Random) -> tuple[str, Message]:
        message = p4r.StreamMessageRequest()
        match chance.randint(0, 2):
            case 0:
                message.arbitration.device_id = DEVICE_ID
                message.arbitration.election_id.low = chance.randint(0, 1)
            case 1:
                message.packet.payload = chance.randbytes(chance.randint(0, 200))
                message.packet.metadata.add(metadata_id=1, value=b"\1")
            case _:
                message.digest_ack.digest_id = chance.choice([1, *(each.preamble.id for each in self.info.digests)])
        return "StreamChannel", message

    async def answers(self, name: str, message: Any) -> bool:
        """Make a call and read its answer to the end; return whether it was carried out."""
        context, method = Context(), getattr(self.service, name)
        try:
            if name == "StreamChannel":
                await _read_all(method(_only(message), context))
            elif name == "Read":
                await _read_all(method(message, context))
            else:
                await method(message, context)
        except AbortedError:
            return False
        return True


async def _connect(service: P4RuntimeService, subject: Subject) -> Client:
    ended, ready = asyncio.Event(), asyncio.Event()
    info = text_format.Parse(subject.p4info(), p4i.P4Info())
    config = p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID, election_id=HIGHEST)
    config.action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    config.config.p4info.CopyFrom(info)
    config.config.p4_device_config = subject.document()
    session = asyncio.create_task(_hold(service, ready, ended))
    client = Client(service=service, info=info, config=config, ended=ended, session=session)
    await ready.wait()
    assert await client.answers("SetForwardingPipelineConfig", config), "the switch must accept the program"
    return client


async def _hold(service: P4RuntimeService, ready: asyncio.Event, ended: asyncio.Event) -> None:
    """Hold the primary's stream open, reading and dropping its messages."""

    async def requests() -> AsyncIterator[p4r.StreamMessageRequest]:
        bid = p4r.MasterArbitrationUpdate(device_id=DEVICE_ID, election_id=HIGHEST)
        yield p4r.StreamMessageRequest(arbitration=bid)
        await ended.wait()

    async for _ in service.StreamChannel(requests(), Context()):  # type: ignore[arg-type]
        ready.set()


async def _only(message: p4r.StreamMessageRequest) -> AsyncIterator[p4r.StreamMessageRequest]:
    yield message


async def _read_all(answers: AsyncIterator[Any]) -> None:
    async for _ in answers:
        continue
