"""A network with only a loopback interface, for code that reacts when the machine's interfaces come and go."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, in a separate network namespace.

    Without root they stay in the machine's.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
