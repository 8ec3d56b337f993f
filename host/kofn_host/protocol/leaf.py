"""A leaf's slots on a host, from leaf.c."""

import weakref

from kofn_host import structs
from kofn_host.errors import ProtocolError
from kofn_host.native import library


class NativeLeaf(structs.Leaf):
    """The slots of the leaf of one rack of `workers` workers.

    `k`: the number of contributions that the root needs at first; `shift`: the value of leaf_shift().
    """

    @classmethod
    def open(cls, *, rack: int, workers: int, slots: int) -> "NativeLeaf":
        """Return empty slots of generation 0.  Raises ProtocolError, CompilerMissing."""
        address = library().leaf_open(rack, workers, slots)
        if not address:
            raise ProtocolError(f"no memory for {slots} slots of a leaf")
        opened = cls.from_address(address)
        weakref.finalize(opened, library().leaf_close, address)
        return opened
