"""A leaf's slots on a host, from leaf.c."""

import ctypes
import weakref
from ctypes import c_int32, c_uint32

from kofn.host.errors import ProtocolError
from kofn.host.native import library


class NativeLeaf(ctypes.Structure):
    """The slots of the leaf of one rack of `workers` workers: the first fields of struct leaf.

    `k`: how many contributions the root needs at first; `shift` as by leaf_shift().
    """

    rack: int
    workers: int
    k: int
    shift: int
    generation: int
    _fields_ = (("rack", c_int32), ("workers", c_int32), ("k", c_int32), ("shift", c_int32), ("generation", c_uint32))

    @classmethod
    def open(cls, *, rack: int, workers: int, slots: int) -> "NativeLeaf":
        """Return empty slots of generation 0.  Raises ProtocolError, CompilerMissing."""
        address = library().leaf_open(rack, workers, slots)
        if not address:
            raise ProtocolError(f"no memory for {slots} slots of a leaf")
        opened = cls.from_address(address)
        weakref.finalize(opened, library().leaf_close, address)
        return opened


def leaf_shift(k: int, workers: int, racks: int) -> int:
    """Return a leaf's `shift`: its open buffer is due with as many contributions as the root misses >> shift.

    0 with k = n: a leaf waits for its whole rack.  Otherwise all leaves together hold back at most half of what the
    root misses.
    """
    return 0 if k == workers else (2 * racks - 1).bit_length()
