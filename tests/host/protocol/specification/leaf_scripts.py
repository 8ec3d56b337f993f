"""Packets that reach a leaf of three workers with shift 1, each with the receivers and kinds of what leaves.

`base` has the fields of every packet besides those named here.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeAlias

from kofn_common.wire.packet import WORD_BYTES, Kind, KofnHeader, Lanes
from tests.host.protocol.specification.leaf_model import ROOT, LeafModel, Packet

Script: TypeAlias = Sequence[tuple[KofnHeader, list[tuple[int, Kind]]]]


def held_until_the_root_misses_less(base: KofnHeader) -> Script:
    """The latest contribution is repeated once the root needs no more than the open buffer holds."""
    first, second, third = (base._replace(worker=worker, words=1, iteration=1, k=8) for worker in range(3))
    rising = first._replace(kind=Kind.ADDED, words=0)
    return [
        (first, []),
        (third, []),
        (rising._replace(count=2), []),
        (rising._replace(count=4), [(2, Kind.ADDED)]),
        (rising._replace(count=5), []),
        (third, [(ROOT, Kind.CONTRIBUTE)]),
        (rising._replace(members=5, count=6), []),
        (second, [(ROOT, Kind.CONTRIBUTE)]),
    ]


def other_lanes_before_the_root_confirms(base: KofnHeader) -> Script:
    """No lanes are refused until then: an earlier contribution in them may be in the root's sum."""
    wide = base._replace(words=2, iteration=1)
    narrow = wide._replace(worker=1, words=1, lanes=Lanes.BITS_16)
    confirmed = wide._replace(kind=Kind.ADDED, words=0, k=5, count=1, members=1)
    return [
        (narrow, []),
        (wide, [(ROOT, Kind.PULL)]),
        (confirmed, []),
        (narrow, [(1, Kind.FORMAT_MISMATCH)]),
        (wide, [(ROOT, Kind.PULL)]),
    ]


SCRIPTS = (held_until_the_root_misses_less, other_lanes_before_the_root_confirms)


def answered(model: LeafModel, header: KofnHeader) -> tuple[Packet, list[Packet]]:
    """Return the packet with this header, and what the model sends. A worker's values are always the same."""
    if header.kind == Kind.ADDED:
        packet = Packet(ROOT, header._replace(worker=model.rack, rack=model.rack))
        return packet, model.above(packet)
    packet = Packet(header.worker, header, (), Random(header.worker).randbytes(header.words * WORD_BYTES))
    return packet, model.below(header, packet.values)
