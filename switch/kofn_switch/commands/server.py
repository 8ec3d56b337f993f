"""Serves commands over TCP to this machine: each command is a line, each answer a line of JSON with its text."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from kofn_switch.commands.interpreter import answer
from kofn_switch.commands.session import Session
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import SwitchError

HOST = "127.0.0.1"
LINE_MOST = 1 << 16
"""The most bytes in a command."""


@asynccontextmanager
async def serving_commands(engine: Engine, port: int | None, *, device_id: int = 0) -> AsyncIterator[None]:
    """Serve at this TCP port within the block, or do nothing if `port` is None. Raise SwitchError."""
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
    """Yield each line; None, as the last one, for a line that is too long."""
    try:
        async for line in reader:
            yield line.decode(errors="replace")
    except ValueError:
        yield None
