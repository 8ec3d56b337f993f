"""Network namespaces and children that cannot outlive this process.

Only an open file descriptor of this process holds a namespace. When the process ends in any way, the kernel closes the
descriptor, removes the namespace, and removes every veth pair that has an end inside. So no name in /run/netns and no
holder process can be left over. Children get SIGKILL from the kernel when this process ends. This module must not know
topologies or interfaces.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from errors import NetworkError

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    """Call a function of libc that returns -1 on failure; NetworkError names the function and the system's error."""
    if getattr(_libc, name)(*arguments) == -1:
        raise NetworkError(f"{name} must run as root with CAP_SYS_ADMIN, got: {os.strerror(ctypes.get_errno())}")


class Namespace:
    """A network namespace, alive as long as this object's descriptor (or a process inside it).

    The current process works inside the namespace with `with namespace.entered(): ...`. Sockets and files of
    /proc/sys/net that are opened there stay there. The process must have one thread, because other threads would stay
    outside.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        """Take over an open descriptor of a namespace; `name` is for messages."""
        self.name = name
        self.descriptor = descriptor

    @classmethod
    def current(cls, name: str = "root") -> Self:
        """Return the namespace that this process is in."""
        return cls(name, os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    @classmethod
    def of_process(cls, name: str, pid: int) -> Self:
        """Return the namespace that another process is in."""
        return cls(name, os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    @classmethod
    def create(cls, name: str) -> Self:
        root = cls.current()
        try:
            _call("unshare", CLONE_NEWNET)
            return cls.current(name)
        finally:
            _call("setns", root.descriptor, CLONE_NEWNET)
            root.close()

    @property
    def path(self) -> str:
        """A path that `nsenter --net=PATH` and `ip link ... netns PATH` take while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    @property
    def inode(self) -> int:
        """The kernel's number of this namespace."""
        return os.fstat(self.descriptor).st_ino

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work inside this namespace within the block."""
        before = Namespace.current()
        _call("setns", self.descriptor, CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", before.descriptor, CLONE_NEWNET)
            before.close()

    def close(self) -> None:
        """Close the descriptor; the kernel removes the namespace when no process is left in it."""
        os.close(self.descriptor)


def die_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn` by which the kernel kills a child when this process dies.

    The kernel sends the signal only if this process dies after the request. So the child then checks whether its
    parent is still the process that made it.
    """
    parent = os.getpid()

    def tie() -> None:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return tie
