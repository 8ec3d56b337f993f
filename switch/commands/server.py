"""Commands over TCP: a line in, a line of JSON out, the text of the answer.  For clients on this machine alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kofn.switch.commands.interpreter import answer
from kofn.switch.commands.session import Session
from kofn.switch.engine.engine import Engine
from kofn.switch.errors import SwitchError

HOST = "127.0.0.1"
LINE_MOST = 1 << 16
"""Bytes of a command."""


@asynccontextmanager
async def serving_commands(engine: Engine, port: int | None) -> AsyncIterator[None]:
    """Serve at this TCP port within the block; None: nothing is served.  Raises SwitchError."""
    if port is None:
        yield
        return
    session = Session(engine)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for line in reader:
                writer.write(json.dumps(answer(session, line.decode(errors="replace"))).encode() + b"\n")
                await writer.drain()
        except ValueError:  # of a line that does not fit
            writer.write(json.dumps(f"Error: a command of more than {LINE_MOST} bytes\n").encode() + b"\n")
        writer.close()

    try:
        server = await asyncio.start_server(talk, HOST, port, limit=LINE_MOST)
    except OSError as error:
        raise SwitchError(f"--thrift-port {port}: cannot listen: {error.strerror}") from error
    async with server:
        yield
