"""A port of this machine that is a test's own."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def own_port() -> Iterator[int]:
    """Reserve a port of all addresses of this machine for a server of this test.

    It is bound without listening, with SO_REUSEADDR as gRPC's servers have it.  A port of one address would not do:
    a connection of another address may have it, and a server at 0.0.0.0 would be refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("0.0.0.0", 0))
        port: int = holder.getsockname()[1]
        yield port
