"""The Scapy layer of a kofn packet, for crafting, dissecting captures, tests, and the agent with packets = "scapy".

The layer is derived from the field table of kofn_common.wire.packet, so the two cannot differ.  Scapy is GPL-2.0-only
and slow: the hot path does not import this module unless it is chosen.

    >>> packet = Kofn(kind=1, job=1, worker=2, iteration=3, words=1)
    >>> packet.mysummary()
    'kofn PULL job 1 worker 2 iteration 3 block 0'
"""

from typing import Any

from scapy.fields import BitField, SignedShortField, XShortField
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_layers
from scapy.utils import checksum

from kofn_common.wire import packet as wire

_DEFAULTS = wire.KofnHeader._field_defaults


def _scapy_field(name: str, bits: int) -> Any:
    """Return a field of the table as a Scapy field."""
    if name == "checksum":
        return XShortField(name, None)  # None: computed when the packet is built
    if name in wire.SIGNED_FIELDS:
        return SignedShortField(name, int(_DEFAULTS[name]))
    return BitField(name, int(_DEFAULTS[name]), bits)


class Kofn(Packet):
    """kofn's header; the values follow as Raw."""

    name = "kofn"
    fields_desc = [_scapy_field(name, bits) for name, bits in wire.HEADER_FIELDS]  # noqa: RUF012  # scapy's way

    def post_build(self, packet: bytes, payload: bytes) -> bytes:
        """Fill in the checksum if none was given."""
        if self.checksum is None:
            at = wire.CHECKSUM
            packet = packet[: at.start] + checksum(packet + payload).to_bytes(2) + packet[at.stop :]
        return packet + payload

    def mysummary(self) -> str:
        """Return one line for a capture's listing."""
        try:
            kind = wire.Kind(self.kind).name
        except ValueError:
            kind = f"kind {self.kind}"
        return f"kofn {kind} job {self.job} worker {self.worker} iteration {self.iteration} block {self.block}"


bind_layers(UDP, Kofn, dport=wire.PORT)


def encode(header: wire.KofnHeader, values: bytes | memoryview) -> bytes:
    """Return the same bytes as wire.encode; Scapy builds them."""
    return bytes(Kofn(**header._asdict() | {"checksum": None}) / Raw(bytes(values)))


def decode_header(datagram: bytes | memoryview) -> wire.KofnHeader:
    """Return the same header as wire.decode_header, with the same errors, dissected by Scapy."""
    return wire.decode_header(datagram, _dissect)


def _dissect(datagram: bytes | memoryview) -> wire.KofnHeader:
    """Return the header of a datagram, unchecked."""
    packet = Kofn(bytes(datagram))
    return wire.KofnHeader(*(packet.getfieldval(name) for name, _ in wire.HEADER_FIELDS))
