"""A leaf's slots on a host, from leaf.c."""

import ctypes
import weakref
from ctypes import c_int32, c_uint32

from kofn_host.errors import ProtocolError
from kofn_host.native import library


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
