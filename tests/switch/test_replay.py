"""pcap files instead of interfaces: the same command line, files and outcomes as simple_switch_grpc."""

import contextlib
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapReader

from kofn_switch.engine.engine import Engine
from kofn_switch.engine.pcap_replay import Input, PcapReplay, open_inputs
from kofn_switch.errors import PcapError
from tests.switch.test_rules import LENGTH, PROGRAM, request
from tests.targets import TARGETS, switch_command

JSON = Path(__file__).parent / "programs" / "rules.json"
TIMEOUT_S = 30
WRITE, READ = 0x10, 0x11
HEADER = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)


def record(time_s: int, data: bytes) -> bytes:
    return struct.pack("<4I", time_s, 0, len(data), len(data)) + data


def pcap(*packets: tuple[int, bytes]) -> bytes:
    return HEADER + b"".join(record(time_s, data) for time_s, data in packets)


def written(path: Path) -> list[bytes]:
    """Return a file's packets as another library reads them."""
    if path.stat().st_size == 0:
        return []  # BMv2 writes even the header with the first packet
    with RawPcapReader(str(path)) as reader:
        return [data for data, _ in reader]


@contextlib.contextmanager
def running(target: str, folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a switch in `folder` with files for ports 1 and 2."""
    command = [*switch_command(target), *arguments, "-i", "1@one", "-i", "2@two", str(JSON)]
    command += ["--", "--grpc-server-addr", f"unix:{folder}/p4runtime.sock"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def until(count: int, path: Path) -> list[bytes]:
    """Return the file's packets once it has `count`: a switch writes each one at once, and
    continues until it is ended.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(FileNotFoundError, EOFError):
            if len(packets := written(path)) >= count:
                return packets
        time.sleep(0.02)
    raise AssertionError(f"{path} has {len(written(path))} of {count} packets")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_packets_of_all_files_enter_in_order_of_time(target: str, tmp_path: Path) -> None:
    long = request(0x23, 0, rest=bytes(range(256)) * 80)
    (tmp_path / "one_in.pcap").write_bytes(
        pcap((1, request(WRITE, 2, 5)), (3, request(READ, 2)), (4, b"!"), (4, long), (9, request(READ, 2)))
    )
    (tmp_path / "two_in.pcap").write_bytes(pcap((2, request(WRITE, 2, 6)), (5, request(WRITE, 2, 7))))
    with running(target, tmp_path, "--use-files", "0") as process:
        packets = until(6, tmp_path / "one_out.pcap")
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    assert [int.from_bytes(data[5:9], "big") for data in packets] == [0, 0, 6, 0, 0, 7]
    assert packets[3] == b"!", "frames that are shorter than any interface sends must be replayed"
    assert written(tmp_path / "two_out.pcap") == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_files_may_be_pipes_that_are_written_later(target: str, tmp_path: Path) -> None:
    inputs = [tmp_path / f"{name}_in.pcap" for name in ("one", "two")]
    for path in inputs:
        os.mkfifo(path)
    with running(target, tmp_path, "--use-files", "0") as process:
        with inputs[0].open("wb", buffering=0) as one:
            one.write(HEADER)  # BMv2 reads it before it opens the next file
            two = inputs[1].open("wb", buffering=0)
            two.write(HEADER)
            one.write(record(2, request(WRITE, 1, 5)))
            one.write(record(4, request(READ, 1)))
            two.write(record(3, request(WRITE, 1, 6)))
            two.close()
        packets = until(3, tmp_path / "one_out.pcap")
        process.terminate()
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert [int.from_bytes(data[5:9], "big") for data in packets] == [0, 0, 6]
    assert (process.returncode, errors) == (0, "") or target == "bmv2"


@pytest.mark.slow
def test_traces_and_counts_are_printed_on_request_and_counts_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "one_in.pcap").write_bytes(pcap((1, request(0x21)), (2, request(0x23, 9)), (3, request(0x23, 2))))
    (tmp_path / "two_in.pcap").write_bytes(HEADER)
    expected = [
        f"port 1 (one): in 3 packets, {3 * LENGTH} bytes; out 0 packets, 0 bytes",
        f"port 2 (two): in 0 packets, 0 bytes; out 1 packets, {LENGTH} bytes",
        "dropped: ingress 1, unknown port 1",
    ]
    with running("embedded", tmp_path, "--use-files", "0", "--trace", "1") as process:
        until(1, tmp_path / "two_out.pcap")
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
        way = list(iter(process.stdout.readline, "\n"))
        assert (way[0], way[-1]) == (f"packet 1 at port 1, {LENGTH} bytes\n", "dropped: ingress\n")
        process.send_signal(signal.SIGUSR1)
        assert [process.stdout.readline().rstrip() for _ in expected] == expected
        process.terminate()
        assert process.stdout.read().splitlines() == expected
    assert process.returncode == 0


def test_missing_file_is_named_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "one_in.pcap").write_bytes(HEADER)
    with running("embedded", tmp_path, "--use-files", "0") as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert errors == "switch: port 2: two_in.pcap cannot be read: No such file or directory\n"


@pytest.mark.slow
def test_damaged_file_ends_the_switch(tmp_path: Path) -> None:
    (tmp_path / "one_in.pcap").write_bytes(pcap((1, request(0x23, 0)))[:-1])
    (tmp_path / "two_in.pcap").write_bytes(HEADER)
    with running("embedded", tmp_path, "--use-files", "0") as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert errors == "switch: one_in.pcap: ends inside packet 1\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (HEADER[:20], "ends inside its header"),
        (b"\x0a\x0d\x0d\x0a" + bytes(30), "not a pcap file (editcap -F pcap converts pcapng)"),
        (pcap((0, b"whole")) + bytes(3), "ends inside the header of packet 2"),
        (HEADER + struct.pack("<4I", 0, 0, 2, 3) + b"ab", "packet 1 is incomplete: 2 of 3 bytes are there"),
        (HEADER + struct.pack("<4I", 0, 0, 1 << 19, 1 << 19), "packet 1 must have at most 262144 bytes, got 524288"),
        (pcap((0, b"cut"))[:-3], "ends inside packet 1"),
    ],
)
def test_damage_of_a_file_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x_in.pcap").write_bytes(content)
    with pytest.raises(PcapError) as error:
        list(opened(tmp_path)[0].packets())
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("order", "magic", "fraction"),
    [("<", 0xA1B2C3D4, 5), (">", 0xA1B2C3D4, 5), ("<", 0xA1B23C4D, 5000), (">", 0xA1B23C4D, 5000)],
)
def test_every_form_of_the_format_is_read(order: str, magic: int, fraction: int, tmp_path: Path) -> None:
    header = struct.pack(f"{order}IHHIIII", magic, 2, 4, 0, 0, 65535, 1)
    packets = [struct.pack(f"{order}4I", 7, fraction, len(data), len(data)) + data for data in (b"", b"ab")]
    (tmp_path / "x_in.pcap").write_bytes(header + b"".join(packets))
    assert list(opened(tmp_path)[0].packets()) == [(7_000_005_000, b""), (7_000_005_000, b"ab")]


def opened(folder: Path, names: Sequence[str] = ("x",)) -> list[Input]:
    return open_inputs({port: str(folder / name) for port, name in enumerate(names, 1)})


def test_packets_wait_for_the_program_then_as_long_as_asked(tmp_path: Path) -> None:
    (tmp_path / "x_in.pcap").write_bytes(pcap((1, request(0x23, 1))))
    engine = Engine({1: str(tmp_path / "x")}, files=True)
    engine.start()
    waited: list[float] = []
    replay = PcapReplay(engine, opened(tmp_path), 7)

    class Told(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0)
            assert engine.program is not None
            return False

    replay._stopping = Told()
    replay.start(lambda error: pytest.fail(str(error)))
    assert engine.stats().drops["no program"] == 0
    engine.load(PROGRAM)
    until(1, tmp_path / "x_out.pcap")
    engine.stop()
    assert waited == [7]
    assert engine.stats().drops["no program"] == 0


def test_packets_of_the_controller_are_in_the_files(tmp_path: Path) -> None:
    engine = Engine({1: str(tmp_path / "x")}, files=True, cpu_port=255)
    engine.load(PROGRAM)
    engine.start()
    engine.send(request(0x23, 1))
    engine.receive(1, request(0x23, 255))
    engine.receive(1, request(0x23, 9))
    engine.receive(1, request(0x23, 1, rest=bytes(131_073)))
    engine.stop()
    assert written(tmp_path / "x_out.pcap") == [request(0x23, 2)]
    assert engine.take_packet_ins(0) == [request(0x23, 256)]
    stats = engine.stats()
    assert (stats.ports[1].received_packets, stats.ports[1].sent_packets) == (3, 1)
    assert stats.drops["received too long"] == 1
    assert stats.drops["unknown port"] == 1


def test_file_without_room_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x_out.pcap").symlink_to("/dev/full")
    engine = Engine({1: str(tmp_path / "x")}, files=True)
    with pytest.raises(Exception, match=r"port 1: .*x_out.pcap cannot be written: No space left on device"):
        engine.start()
