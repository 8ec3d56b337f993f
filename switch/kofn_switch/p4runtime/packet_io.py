"""Packets between the controller and the CPU port: the program's @controller_header fields as PacketMetadata.

A packet to the CPU port starts with the header `packet_in`, a packet from the CPU port with `packet_out`. A header is
the bit string of its declared fields in order, padded at the end to whole bytes.
"""

from finsy.proto import p4r

from kofn_switch.p4runtime import bytestring
from kofn_switch.p4runtime.p4info import P4Info, PacketHeader
from kofn_switch.p4runtime.refusal import invalid, unready


def packet_in(p4info: P4Info, packet: bytes) -> p4r.PacketIn:
    """Return a packet that the program sent to the CPU port. Raise Refused when it is shorter than its header."""
    header = p4info.packet_header("packet_in")
    if header is None:
        return p4r.PacketIn(payload=packet)
    size = _bytes(header)
    if len(packet) < size:
        raise invalid(f"a packet of {len(packet)} bytes came to the CPU port; its header packet_in has {size}")
    bits = int.from_bytes(packet[:size], "big")
    left = size * 8
    message = p4r.PacketIn(payload=packet[size:])
    for item in header.fields:
        left -= item.width
        value = bits >> left & ((1 << item.width) - 1)
        message.metadata.add(metadata_id=item.id, value=bytestring.encode(value))
    return message


def packet_out(p4info: P4Info, message: p4r.PacketOut) -> bytes:
    """Return the packet to enter the switch by the CPU port. Raise Refused unless each field is given once and fits."""
    header = p4info.packet_header("packet_out")
    if header is None:
        raise unready("the program has no @controller_header packet_out; it takes no packets from the controller")
    values = _values(header, message)
    size = _bytes(header)
    bits = used = 0
    for item in header.fields:
        bits = bits << item.width | values[item.id]
        used += item.width
    return (bits << (size * 8 - used)).to_bytes(size, "big") + message.payload


def _values(header: PacketHeader, message: p4r.PacketOut) -> dict[int, int]:
    values: dict[int, int] = {}
    for metadata in message.metadata:
        item = header.fields.get(metadata.metadata_id)
        if item.id in values:
            raise invalid(f"metadata field {item.name} of packet_out is given twice")
        values[item.id] = bytestring.decode(metadata.value, item.width, f"metadata field {item.name} of packet_out")
    missing = [item.name for item in header.fields if item.id not in values]
    if missing:
        raise invalid(f"packet_out must have every metadata field, got no {', '.join(missing)}")
    return values


def _bytes(header: PacketHeader) -> int:
    return (sum(item.width for item in header.fields) + 7) // 8
