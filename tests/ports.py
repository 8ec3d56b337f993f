"""A port of this machine that is a test's own."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def own_port() -> Iterator[int]:
    """A port that the kernel gives nobody else meanwhile, and at which a gRPC server of this test may listen.

    Bound without listening, with SO_REUSEADDR as gRPC's servers have it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
