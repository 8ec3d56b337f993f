"""Packets from pcap files instead of interfaces, as with BMv2's --use-files: NAME_in.pcap for port N@NAME.

The packet with the earliest time goes first; if times are equal, the packet of the lowest port goes first. The replay
does not wait until a packet's time. It sends a packet only when it knows the next packet, or the end, of every file,
which matters for named pipes.
"""

import logging
import os
import select
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import BinaryIO, TypeAlias

from kofn_switch.engine.engine import Engine
from kofn_switch.engine.ports import pcap_file
from kofn_switch.errors import PcapError

LOG = logging.getLogger(__name__)
Packet: TypeAlias = tuple[int, int, int, bytes]  # nanoseconds, place of its file, port, bytes

FILE_HEADER = 24
RECORD_HEADER = 16
FORMATS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
"""By a file's first four bytes: its byte order, and the nanoseconds in a unit of the second number of a packet's
time."""
BYTES_MAX = 1 << 18  # libpcap's own limit: a longer packet means a damaged file
PATIENCE_S = 0.2  # seconds between checks whether the switch ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An open pcap file and the port that its packets arrive at."""

    port: int
    path: Path
    file: BinaryIO

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """Yield (time in nanoseconds, bytes) in the file's order, then close the file. Raise PcapError."""
        with self.file:
            yield from self._packets()

    def _packets(self) -> Iterator[tuple[int, bytes]]:
        header = self._read(FILE_HEADER, "its header")
        if header is None:
            raise PcapError(f"{self.path}: empty; a pcap file begins with a header")
        if header[:4] not in FORMATS:
            raise PcapError(f"{self.path}: not a pcap file (editcap -F pcap converts pcapng)")
        order, unit_ns = FORMATS[header[:4]]
        number = 0
        while (record := self._read(RECORD_HEADER, f"the header of packet {number + 1}")) is not None:
            number += 1
            seconds, fraction, captured, length = struct.unpack(f"{order}4I", record)
            if captured != length:
                raise PcapError(f"{self.path}: packet {number} is incomplete: {captured} of {length} bytes are there")
            if length > BYTES_MAX:
                raise PcapError(f"{self.path}: packet {number} must have at most {BYTES_MAX} bytes, got {length}")
            data = (self._read(length, f"packet {number}") or b"") if length else b""
            if len(data) != length:
                raise PcapError(f"{self.path}: ends inside packet {number}")
            yield seconds * 1_000_000_000 + fraction * unit_ns, data

    def _read(self, size: int, what: str) -> bytes | None:
        """Return `size` bytes, or None at the file's end. Raise PcapError when the file ends in between."""
        data = self.file.read(size)
        if data and len(data) < size:
            raise PcapError(f"{self.path}: ends inside {what}")
        return data or None


def open_inputs(ports: Mapping[int, str]) -> list[Input]:
    """Open the files of the ports, the lowest port's first, without waiting for named pipes' writers. PcapError."""
    inputs: list[Input] = []
    try:
        for port in sorted(ports):
            inputs.append(_open(port, Path(pcap_file(ports[port], "in"))))
    except PcapError:
        for opened in inputs:
            opened.file.close()
        raise
    return inputs


def _open(port: int, path: Path) -> Input:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise PcapError(f"port {port}: {path} cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PcapError(f"port {port}: {path} cannot be read: it is a directory")
    os.set_blocking(descriptor, True)
    return Input(port=port, path=path, file=os.fdopen(descriptor, "rb"))


class PcapReplay:
    """Feeds the files' packets to an engine from a separate thread, which dies with the process."""

    def __init__(self, engine: Engine, inputs: list[Input], wait_s: float) -> None:
        """Wait `wait_s` from the program's arrival to the first packet."""
        self._engine = engine
        self._inputs = inputs
        self._wait_s = wait_s
        self._stopping = threading.Event()

    def start(self, on_failure: Callable[[PcapError], None]) -> None:
        """Start the thread if there are files; on a failure the thread calls `on_failure`, except after `stop`."""
        if self._inputs:
            threading.Thread(target=self._run, args=(on_failure,), name="replay", daemon=True).start()

    def stop(self) -> None:
        """Take no further packet from the files."""
        self._stopping.set()

    def _run(self, on_failure: Callable[[PcapError], None]) -> None:
        while not self._engine.wait_for_program(PATIENCE_S):
            if self._stopping.is_set():
                return
        if self._stopping.wait(self._wait_s):
            return
        try:
            count = self._feed()
        except PcapError as error:
            if not self._stopping.is_set():
                on_failure(error)
            return
        LOG.info("%d packets read, all input files are at their end", count)

    def _feed(self) -> int:
        count = 0
        for _, _, port, data in merge(*(_timed(place, file) for place, file in enumerate(self._inputs))):
            if self._stopping.is_set():
                break
            self._engine.receive(port, data)
            count += 1
        return count


def _timed(place: int, one: Input) -> Iterator[Packet]:
    """Yield a file's packets, each with its sort key among the packets of all files. First wait for the writer of a
    pipe."""
    waiting = select.poll()
    waiting.register(one.file, select.POLLIN)
    waiting.poll()
    for time_ns, data in one.packets():
        yield time_ns, place, one.port, data
