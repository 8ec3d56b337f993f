"""Commands over TCP: a line in, a line of JSON out, the text of the answer.  For clients on this machine alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from kofn.switch.commands.interpreter import answer
from kofn.switch.commands.session import Session
from kofn.switch.engine.engine import Engine
from kofn.switch.errors import SwitchError

HOST = "127.0.0.1"
LINE_MOST = 1 << 16
"""Bytes of a command."""


@asynccontextmanager
async def serving_commands(engine: Engine, port: int | None, *, device_id: int = 0) -> AsyncIterator[None]:
    """Serve at this TCP port within the block; None: nothing is served.  Raises SwitchError."""
    if port is None:
        yield
        return
    session = Session(engine, device_id, port)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            async for line in _lines(reader):
                said = f"Error: a command of more than {LINE_MOST} bytes\n" if line is None else answer(session, line)
                writer.write(json.dumps(said).encode() + b"\n")
                await writer.drain()

    try:
        server = await asyncio.start_server(talk, HOST, port, limit=LINE_MOST)
    except OSError as error:
        raise SwitchError(f"--thrift-port {port}: cannot listen: {error.strerror}") from error
    async with server:
        yield


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str | None]:
    """None, and nothing more, for one that does not fit."""
    try:
        async for line in reader:
            yield line.decode(errors="replace")
    except ValueError:
        yield None
