"""A port of this machine for one test."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def own_port() -> Iterator[int]:
    """Reserve a port on all addresses of this machine for a server of this test.

    It is bound without listening, with SO_REUSEADDR like gRPC's servers. A port of one address would not suffice: a
    connection from another address may use it, and a server at 0.0.0.0 would be refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("0.0.0.0", 0))
        port: int = holder.getsockname()[1]
        yield port
