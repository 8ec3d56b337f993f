"""BMv2 as a target: simple_switch_grpc, told by P4Runtime, its packets over its data-plane service.

That service takes packets of any length without interfaces, and says when all of them are through.
"""

import contextlib
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from switch.compiler.program import Program
from switch.compiler.reader import read_program
from switch.entries import Digest
from switch.errors import ProgramError
from tests.switch.suite.bmv2_control import Bmv2Control
from tests.switch.suite.stf import Statement, ports_of
from tests.targets import BMV2

DEVICE_ID = 1
READY_S = 20
PACKETS_S = 20
DIGESTS_S = 5


def _packet_type() -> Any:
    """The message of BMv2's data-plane service, both ways."""
    file = descriptor_pb2.FileDescriptorProto(name="dataplane.proto", package="p4.bm", syntax="proto3")
    message = file.message_type.add(name="Packet")
    kind = descriptor_pb2.FieldDescriptorProto
    fields = {
        "id": kind.TYPE_UINT64,
        "device_id": kind.TYPE_UINT64,
        "port": kind.TYPE_UINT32,
        "packet": kind.TYPE_BYTES,
    }
    for number, (name, type_) in enumerate(fields.items(), 1):
        message.field.add(name=name, number=number, type=type_, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p4.bm.Packet"))


PACKET = _packet_type()


@dataclass(kw_only=True)
class Bmv2:
    """A running BMv2 with a program; one packet is through before the next is sent."""

    program: Program
    control: Bmv2Control
    ports: frozenset[int]
    stream: Any
    _sent: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def send(self, port: int, packet: bytes) -> None:
        for sent in self.stream(iter([PACKET(device_id=DEVICE_ID, port=port, packet=packet)]), timeout=PACKETS_S):
            if sent.port in self.ports:
                self._sent[sent.port].append(sent.packet)

    def sent(self) -> dict[int, list[bytes]]:
        return dict(self._sent)

    def digests(self, expected: int) -> list[Digest]:
        return self.control.take_digests(expected, DIGESTS_S)


@contextlib.contextmanager
def bmv2(json: Path, statements: Sequence[Statement]) -> Iterator[Bmv2]:
    """simple_switch_grpc with the program."""
    with tempfile.TemporaryDirectory(prefix="kofn-") as folder, _process(Path(folder)):
        control, packets = (grpc.insecure_channel(f"unix:{folder}/{name}") for name in ("control", "packets"))
        with control, packets:
            grpc.channel_ready_future(control).result(READY_S)
            grpc.channel_ready_future(packets).result(READY_S)
            info = text_format.Parse(json.with_suffix(".p4info.txtpb").read_text(), p4i.P4Info())
            program = read_program(json.read_bytes())
            stub = p4r_grpc.P4RuntimeStub(control)
            told = Bmv2Control(stub=stub, info=info, program=program, device_id=DEVICE_ID)
            with told.primary():
                _push(stub, info, json.read_bytes(), told.election_id)
                told.watch_digests()
                stream = packets.stream_stream(
                    "/p4.bm.DataplaneInterface/PacketStream",
                    request_serializer=PACKET.SerializeToString,
                    response_deserializer=PACKET.FromString,
                )
                _wait_until_ready(stream)
                yield Bmv2(program=program, control=told, ports=ports_of(statements), stream=stream)


def _wait_until_ready(stream: Any) -> None:
    """The service answers before the switch has started."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        call = stream(iter(()), timeout=READY_S)
        if call.code() != grpc.StatusCode.UNAVAILABLE:
            return
        time.sleep(0.01)
    raise TimeoutError(f"BMv2 does not take packets after {READY_S} s")


@contextlib.contextmanager
def _process(folder: Path) -> Iterator[None]:
    flags = ["--grpc-server-addr", f"unix:{folder}/control", "--dp-grpc-server-addr", f"unix:{folder}/packets"]
    command = ["setpriv", "--pdeathsig", "KILL", "--", BMV2, "--no-p4", "--device-id", str(DEVICE_ID), "--", *flags]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            yield
        finally:
            process.kill()


def _push(stub: Any, info: p4i.P4Info, document: bytes, election_id: int) -> None:
    request = p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID)
    request.action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    request.config.p4info.CopyFrom(info)
    request.config.p4_device_config = document
    request.election_id.CopyFrom(U128.encode(election_id))
    try:
        stub.SetForwardingPipelineConfig(request, timeout=READY_S)
    except grpc.RpcError as error:
        raise ProgramError(f"BMv2 refuses the program: {error.details()}") from error
