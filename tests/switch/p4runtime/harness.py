"""A switch under test: the embedded one as a process, or simple_switch_grpc.

Both get the same command line, program and packets. Clients use a Unix socket, so that a switch in another network
namespace can be reached.
"""

import asyncio
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import finsy as fy
import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_code, rpc_status
from google.protobuf import text_format

from tests.targets import switch_command
from tests.waiting import PATIENCE_S

PROGRAMS = Path(__file__).parent.parent / "programs"
PROGRAM = PROGRAMS / "control_plane.json"
P4INFO = PROGRAMS / "control_plane.p4info.txtpb"
Process = subprocess.Popen[bytes]
Environment = dict[str, str]
DEVICE_ID = 1
CPU_PORT = 255
PORTS = 3
START_S = 60  # the first switch compiles the runtime


@dataclass(kw_only=True)
class Target:
    """A running switch."""

    name: str
    address: str
    log: Path
    packets_in: IO[bytes] | None = None
    outputs: dict[int, "queue.Queue[bytes]"] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        return self.name == "embedded"

    def send(self, port: int, frame: bytes) -> None:
        """Let a frame arrive at a port."""
        assert self.packets_in is not None
        self.packets_in.write(f"{port} {frame.hex()}\n".encode())
        self.packets_in.flush()

    async def receive(self, port: int) -> bytes:
        """Return the next frame that leaves by a port."""
        return await asyncio.to_thread(self.outputs[port].get, True, PATIENCE_S)

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[fy.Switch]:
        """Yield a finsy controller that has just pushed the test program, so that the switch has no earlier state."""
        chosen: dict[str, Any] = {
            "p4info": P4INFO,
            "p4blob": PROGRAM,
            "device_id": DEVICE_ID,
            "p4force": True,
        } | options
        async with fy.Switch("test", self.address, fy.SwitchOptions(**chosen)) as switch:
            yield switch

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        """Yield a stub of the plain RPCs."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            yield p4r_grpc.P4RuntimeStub(channel)


def p4info() -> p4i.P4Info:
    return text_format.Parse(P4INFO.read_text(), p4i.P4Info())


def object_id(name: str) -> int:
    """Return the id of a table, action, counter, ... by its full name."""
    return _ids()[name]


@cache
def _ids() -> dict[str, int]:
    info = p4info()
    groups = (info.tables, info.actions, info.counters, info.registers, info.digests)
    return {item.preamble.name: int(item.preamble.id) for group in groups for item in group}


def pipeline(*, cookie: int | None = None) -> p4r.ForwardingPipelineConfig:
    config = p4r.ForwardingPipelineConfig(p4info=p4info(), p4_device_config=PROGRAM.read_bytes())
    if cookie is not None:
        config.cookie.cookie = cookie
    return config


def frame(kind: int, value: int = 0, narrow: int = 0, payload: bytes = b"payload") -> bytes:
    """Return an Ethernet frame with the program's test header."""
    header = bytes([kind, narrow]) + value.to_bytes(4, "big")
    return bytes.fromhex("020000000001 020000000002 9000") + header + payload


def bid(election_id: int | None, device_id: int = DEVICE_ID) -> p4r.StreamMessageRequest:
    update = p4r.MasterArbitrationUpdate(device_id=device_id)
    if election_id is not None:
        update.election_id.CopyFrom(U128.encode(election_id))
    return p4r.StreamMessageRequest(arbitration=update)


@contextlib.contextmanager
def running(name: str, folder: Path, **environment: str) -> Iterator[Target]:
    """Start a switch, with ports if this process is root."""
    target = Target(name=name, address=f"unix:{folder}/p4runtime.sock", log=folder / "switch.log")
    flags = ["--no-p4", "--device-id", str(DEVICE_ID), "--log-console", "-L", "info", "--"]
    command = [*switch_command(name), *flags, "--grpc-server-addr", target.address, "--cpu-port", str(CPU_PORT)]
    starter = _with_ports if os.geteuid() == 0 else _without_ports
    with starter(target, command, os.environ | environment) as process:
        wait_until_ready(target, process)
        yield target


@contextlib.contextmanager
def _without_ports(target: Target, command: list[str], environment: Environment) -> Iterator[Process]:
    with target.log.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def _with_ports(target: Target, command: list[str], environment: Environment) -> Iterator[Process]:
    relay = ["unshare", "-n", sys.executable, str(Path(__file__).parent / "relay.py"), str(PORTS), str(target.log)]
    target.outputs = {port: queue.Queue() for port in range(1, PORTS + 1)}
    argv, pipe = [*relay, *command], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        target.packets_in = process.stdin
        reader = threading.Thread(target=_collect, args=(process.stdout, target.outputs))
        reader.start()
        try:
            yield process
        finally:
            process.stdin.close()
            reader.join(PATIENCE_S)


def _collect(lines: IO[bytes], outputs: dict[int, "queue.Queue[bytes]"]) -> None:
    for line in lines:
        port, _, data = line.decode().partition(" ")
        outputs[int(port)].put(bytes.fromhex(data))


def wait_until_ready(target: Target, process: Process) -> None:
    with grpc.insecure_channel(target.address) as channel:
        try:
            grpc.channel_ready_future(channel).result(START_S)
        except grpc.FutureTimeoutError as error:
            said = target.log.read_text() if target.log.exists() else "nothing"
            raise RuntimeError(f"{target.name} does not serve (exit code {process.poll()}); it said: {said}") from error


@dataclass(kw_only=True)
class Primary:
    """A client that speaks plain P4Runtime as the primary, to send what a client library would not."""

    stub: Any
    stream: Any
    election_id: int

    async def write(self, *updates: p4r.Update, **fields: Any) -> None:
        request = p4r.WriteRequest(device_id=DEVICE_ID, updates=updates, **fields)
        request.election_id.CopyFrom(U128.encode(self.election_id))
        await self.stub.Write(request, timeout=PATIENCE_S)

    async def outcomes(self, *updates: p4r.Update) -> list[tuple[str, str]]:
        """Write the updates and return the code and message of each; empty if all succeeded."""
        try:
            await self.write(*updates)
        except grpc.aio.AioRpcError as error:
            return batch_errors(error)
        return []

    async def read(self, *entities: p4r.Entity) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=DEVICE_ID, entities=entities)
        return [
            entity async for response in self.stub.Read(request, timeout=PATIENCE_S) for entity in response.entities
        ]

    async def push(
        self, config: p4r.ForwardingPipelineConfig | None = None, action: str = "VERIFY_AND_COMMIT", **fields: Any
    ) -> None:
        request = p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID, **fields)
        request.action = p4r.SetForwardingPipelineConfigRequest.Action.Value(action)
        if action != "COMMIT" or config is not None:
            request.config.CopyFrom(pipeline() if config is None else config)
        request.election_id.CopyFrom(U128.encode(self.election_id))
        await self.stub.SetForwardingPipelineConfig(request, timeout=60)

    async def hear(self) -> p4r.StreamMessageResponse:
        """Return the next message on the stream."""
        return await asyncio.wait_for(self.stream.read(), PATIENCE_S)


def batch_errors(error: grpc.aio.AioRpcError) -> list[tuple[str, str]]:
    """Return the p4.v1.Error of each update or query of a batch, as (code, message)."""
    assert error.code() is grpc.StatusCode.UNKNOWN, error
    metadata = dict(error.trailing_metadata() or ())
    status = rpc_status.Status.FromString(metadata["grpc-status-details-bin"])
    assert status.code == rpc_code.UNKNOWN
    errors = []
    for detail in status.details:
        unpacked = p4r.Error()
        assert detail.Unpack(unpacked)
        errors.append((rpc_code.Code.Name(rpc_code.Code.ValueType(unpacked.canonical_code)), unpacked.message))
    return errors


@contextlib.asynccontextmanager
async def primary(target: Target, *, push: bool = True) -> AsyncIterator[Primary]:
    """Become the primary of a switch, and push the test program unless `push` is False."""
    async with target.stub() as stub:
        stream = stub.StreamChannel()
        election_id = time.time_ns()  # above all earlier ids, which the switch remembers
        await stream.write(bid(election_id))
        client = Primary(stub=stub, stream=stream, election_id=election_id)
        assert (await client.hear()).arbitration.status.code == rpc_code.OK
        if push:
            await client.push()
        try:
            yield client
        finally:
            stream.cancel()


def update(kind: str, entity: p4r.Entity) -> p4r.Update:
    return p4r.Update(type=p4r.Update.Type.Value(kind), entity=entity)


async def check_refused(client: Primary, wrong: Mapping[str, tuple[str, p4r.Entity, str, str]]) -> None:
    """Check that each entity is refused; `wrong`: by name (kind of update, entity, code, part of the message)."""
    for name, (kind, entity, code, words) in wrong.items():
        ((found, message),) = await client.outcomes(update(kind, entity))
        assert found == code, f"{name}: {message}"
        assert words in message, name


def action(name: str, *values: bytes) -> p4r.TableAction:
    params = [p4r.Action.Param(param_id=number, value=value) for number, value in enumerate(values, 1)]
    return p4r.TableAction(action=p4r.Action(action_id=object_id(name), params=params))


def exact(value: bytes, field_id: int = 1) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, exact=p4r.FieldMatch.Exact(value=value))


def table_entry(table: str, *match: p4r.FieldMatch, **fields: Any) -> p4r.Entity:
    return p4r.Entity(table_entry=p4r.TableEntry(table_id=object_id(f"TestIngress.{table}"), match=match, **fields))
