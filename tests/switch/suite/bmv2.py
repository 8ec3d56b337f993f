"""BMv2 as a target: simple_switch_grpc, controlled by P4Runtime, with packets over its data-plane service.

That service takes packets of any length without interfaces, and reports when all of them are processed.
"""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import U128, p4r, p4r_grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.errors import ProgramError
from tests.switch.suite.bmv2_control import Bmv2Control
from tests.targets import switch_command

DEVICE_ID = 1
READY_S = 20
PACKETS_S = 20


def _packet_type() -> Any:
    """Return the message type of BMv2's data-plane service, for both directions."""
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


class Bmv2(Bmv2Control):
    """A running BMv2; each packet is processed before the next is sent."""

    def __init__(self, control: grpc.Channel, packets: grpc.Channel) -> None:
        """Take the channels to its two services."""
        super().__init__(stub=p4r_grpc.P4RuntimeStub(control), device_id=DEVICE_ID)
        self._ready = False
        self._stream = packets.stream_stream(
            "/p4.bm.DataplaneInterface/PacketStream",
            request_serializer=PACKET.SerializeToString,
            response_deserializer=PACKET.FromString,
        )

    def load(self, document: bytes) -> None:
        """Push the program; `info` must be its P4Info. Raises ProgramError."""
        self.forget_copies()
        self.program = read_program(document)
        request = p4r.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID)
        request.action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request.config.p4info.CopyFrom(self.info)
        request.config.p4_device_config = document
        request.election_id.CopyFrom(U128.encode(self.election_id))
        try:
            self.stub.SetForwardingPipelineConfig(request, timeout=READY_S)
        except grpc.RpcError as error:
            raise ProgramError(f"BMv2 refuses the program: {error.details()}") from error
        self.watch_digests()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Wait until the switch is ready: it starts with its first program, but the service answers earlier."""
        deadline = time.monotonic() + READY_S
        while not self._ready:
            if time.monotonic() > deadline:
                raise TimeoutError(f"BMv2 does not take packets after {READY_S} s")
            self._ready = self._stream(iter(()), timeout=READY_S).code() != grpc.StatusCode.UNAVAILABLE
            time.sleep(0.01)

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Process one packet and return the outputs of all ports."""
        request = PACKET(device_id=DEVICE_ID, port=port, packet=packet)
        return [(sent.port, sent.packet) for sent in self._stream(iter([request]), timeout=PACKETS_S)]


@contextlib.contextmanager
def running() -> Iterator[Bmv2]:
    """Start simple_switch_grpc without a program."""
    with tempfile.TemporaryDirectory(prefix="kofn-") as folder, _process(Path(folder)):
        control, packets = (grpc.insecure_channel(f"unix:{folder}/{name}") for name in ("control", "packets"))
        with control, packets:
            grpc.channel_ready_future(control).result(READY_S)
            grpc.channel_ready_future(packets).result(READY_S)
            switch = Bmv2(control, packets)
            with switch.primary():
                yield switch


@contextlib.contextmanager
def _process(folder: Path) -> Iterator[None]:
    flags = ["--grpc-server-addr", f"unix:{folder}/control", "--dp-grpc-server-addr", f"unix:{folder}/packets"]
    beginning = ["setpriv", "--pdeathsig", "KILL", "--", *switch_command("bmv2")]
    command = [*beginning, "--no-p4", "--device-id", str(DEVICE_ID), "--", *flags]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            yield
        finally:
            process.kill()
