"""A whole run with an intruder: forged packets from a host, and strangers at a gRPC port."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kofn_common.config.objectives import DEFAULT
from tests.run.real_run import KOFN, NEVER, RealRun

pytestmark = [pytest.mark.root, pytest.mark.slow]

FORGE = """
import socket
from kofn_common.wire import packet as wire

line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.setsockopt(socket.SOL_SOCKET, 11, 1)  # SO_NO_CHECK
line.connect(("10.0.0.254", wire.PORT))
good = wire.KofnHeader(job=1, worker=1, iteration=1)
damaged = bytearray(wire.encode(good, bytes(256)))
damaged[100] ^= 1
for datagram in (
    wire.encode(good._replace(worker=0), bytes(256)),  # rank 0 does not speak from here
    wire.encode(good._replace(job=9), bytes(256)),
    wire.encode(good._replace(kind=wire.Kind.RESULT), bytes(256)),
    wire.encode(good._replace(version=1), bytes(256)),
    wire.encode(good._replace(words=2), bytes(256)),
    wire.encode(good._replace(generation=7), bytes(256)),
    bytes(damaged),
):
    for _ in range(3):
        line.send(datagram)
"""
AHEAD = """
import socket, sys
from kofn_common.wire import packet as wire

port = next(name for _, name in socket.if_nameindex() if name.endswith("-eth0"))
heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))  # every protocol: outgoing packets, too
heard.bind((port, 0))
start = 20 + 8
while True:
    packet, source = heard.recvfrom(65535)
    sent = source[2] == socket.PACKET_OUTGOING and packet[22:24] == wire.PORT.to_bytes(2)
    if sent and packet[start] == wire.VERSION << 4 | wire.Kind.CONTRIBUTE:
        break
mine = next(wire.headers_of(packet[start : start + wire.HEADER_BYTES]))
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.setsockopt(socket.SOL_SOCKET, 11, 1)  # SO_NO_CHECK
line.connect(("10.0.0.254", wire.PORT))
for fields in (
    {"iteration": mine.iteration << 16},  # the field's two words exchanged
    {"iteration": 2**32 - 1},
    {"iteration": mine.iteration + 1, "k": 1},  # a block that this packet alone would close, if the job's k were 1
    {"iteration": mine.iteration + 100},
):
    line.send(wire.encode(mine._replace(**fields), bytes(256 * mine.words)))
print(mine)
"""

REASONS = ("WRONG_PORT", "UNKNOWN_JOB", "BAD_KIND", "BAD_VERSION", "BAD_LENGTH", "OLD_GENERATION", "BAD_CHECKSUM")

STRANGER = """
import grpc, sys
from kofn_common.rpc import kofn_pb2 as pb, kofn_pb2_grpc
from kofn_common.rpc.security import Credentials, CONTROLLER, channel
from pathlib import Path

with grpc.insecure_channel("127.0.0.1:50052") as line:
    try:
        print(kofn_pb2_grpc.InspectorStub(line).GetStatus(pb.StatusRequest(), timeout=5))
    except grpc.RpcError as error:
        print("plaintext", error.code().name)
folder = Path(sys.argv[1])
read = lambda name: (folder / name).read_bytes()
tls = grpc.ssl_channel_credentials(read("ca.pem"), read("operator.key"), read("operator.pem"))
with grpc.secure_channel("127.0.0.1:50052", tls, [("grpc.ssl_target_name_override", "controller.kofn")]) as line:
    try:
        print(kofn_pb2_grpc.InspectorStub(line).GetStatus(pb.StatusRequest(), timeout=5))
    except grpc.RpcError as error:
        print("no token", error.code().name)
"""


def test_forged_packets_and_strangers_change_nothing(tmp_path: Path) -> None:
    """This uses one switch; tests/dataplane tests each reason on both."""
    target = os.environ.get("KOFN_TARGET", "embedded")
    many = ("--trial", DEFAULT, "--set", "run.max_iterations=1000000")  # the run outlasts the test beside any load
    with RealRun(tmp_path, "--target", target, *many, target=NEVER) as run:
        run.until_training()
        worker = run.pid("kofn_host", "--rank", "1")
        subprocess.run(["nsenter", f"--net=/proc/{worker}/ns/net", sys.executable, "-c", FORGE], check=True)
        inside = ["nsenter", f"--net=/proc/{run.process.pid}/ns/net", sys.executable, "-c"]
        status = [*inside, KOFN, "status"]

        def all_dropped() -> bool:
            shown = subprocess.run(status, env=run.environment, capture_output=True, text=True, check=False)
            assert shown.returncode == 0, shown.stderr + run.text()
            lines = shown.stdout.splitlines()
            start = next((at for at, line in enumerate(lines) if line.startswith("dropped:")), len(lines))
            return all(f"{reason}=3" in " ".join(lines[start:]) for reason in REASONS)

        run.until(all_dropped, "the counts of what was dropped")
        asked = [*inside, STRANGER, str(run.out / "certs")]
        answers = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert answers.split("\n")[:2] == ["plaintext UNAVAILABLE", "no token UNAUTHENTICATED"]
        before = run.lines()
        run.until(lambda: run.lines() > before + 5, "training going on")


def test_slot_that_a_forged_packet_has_occupied_leads_to_a_new_generation(tmp_path: Path) -> None:
    """The last forged packet passes all checks. Only the workers know that none of them is in its iteration."""
    target = os.environ.get("KOFN_TARGET", "embedded")
    few = ("--trial", "all", "--set", "run.max_iterations=300", "--set", "model.compute_ms=30")
    with RealRun(tmp_path, "--target", target, *few, target=NEVER) as run:
        run.until(lambda: run.lines(name="all") >= 3, "training")
        worker = run.pid("kofn_host", "--rank", "1")
        subprocess.run(["nsenter", f"--net=/proc/{worker}/ns/net", sys.executable, "-c", AHEAD], check=True)
        assert run.wait() == 1, run.text()  # the target alone is missed
        (trial,) = json.loads((run.out / "summary.json").read_text())["trials"]
        said = (run.out / "all" / "logs" / "controller.log").read_text()
        assert (trial["iterations"], trial["regroups"]) == (300, 1), said
        assert trial["identity_error"] is trial["conservation_error"] is None
