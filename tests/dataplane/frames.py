"""Builds frames as a worker's host would send them, and parses them."""

from dataclasses import dataclass

import numpy as np
from scapy.compat import raw
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from kofn_common.wire import packet as wire
from kofn_common.wire import scapy_layer as packets
from kofn_host.kernels.lanes import pack

GENERATION = 1
"""The generation of the job's slots; each test pushes the program, so no state of another test remains."""

SERVICE_MAC, SERVICE_IP = "02:6b:6f:66:6e:fe", "10.0.0.254"


def host_mac(port: int) -> str:
    return f"08:00:00:00:00:{port:02x}"


def frame(port: int, header: wire.KofnHeader, values: bytes) -> bytes:
    """Return a frame from the host at `port` to the switch's service address."""
    return raw(
        Ether(dst=SERVICE_MAC, src=host_mac(port))
        / IP(src=f"10.0.0.{port}", dst=SERVICE_IP)
        / UDP(sport=wire.PORT, dport=wire.PORT, chksum=0)
        / Raw(packets.encode(header, values))
    )


@dataclass(frozen=True)
class Answer:
    """A kofn packet that a host received."""

    header: wire.KofnHeader
    values: np.ndarray
    ether: Ether

    @property
    def kind(self) -> wire.Kind:
        return wire.Kind(self.header.kind)


def parse(received: bytes) -> Answer:
    ether = Ether(received)
    header, values = bytes(ether[UDP].payload)[: wire.HEADER_BYTES], bytes(ether[UDP].payload)[wire.HEADER_BYTES :]
    decoded = wire.decode_header(header + values)
    return Answer(decoded, np.frombuffer(values, ">i4").astype(np.int64), ether)


def contribution(worker: int, iteration: int, block: int, values: np.ndarray, **fields: int) -> tuple[int, bytes]:
    """Return port and frame of a contribution of 32-bit values."""
    words = len(values) * 4 // wire.WORD_BYTES
    base = wire.KofnHeader(job=1, worker=worker, words=words, iteration=iteration, block=block, slot=block, scale=7)
    header = base._replace(**{"generation": GENERATION, **fields})
    return worker + 1, frame(worker + 1, header, pack(values.astype(np.int32), 32))


def pull(worker: int, iteration: int, block: int, words: int, **fields: int) -> tuple[int, bytes]:
    """Return port and frame of a PULL, padded to the result's length."""
    header = wire.KofnHeader(
        kind=wire.Kind.PULL, job=1, worker=worker, words=words, iteration=iteration, block=block, slot=block
    )
    header = header._replace(**{"generation": GENERATION, **fields})
    return worker + 1, frame(worker + 1, header, bytes(words * wire.WORD_BYTES))
