"""Connections of the page's server. The server limits the number of connections and the time for a request's header,
because a client needs no token to open a connection or to send a header."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MOST = 64
HEADER_S = 5.0
"""The longest time until a request's header is complete. The time begins with the connection, or for a later request
with the request's first byte."""


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 of one connection; a connection beyond the limits is closed without an answer."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MOST:
            transport.abort()
        else:
            self._limit_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_header()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _limit_header(self) -> None:
        """Start the timer of a header, unless a request is being answered."""
        if self._timer is None and self._awaits_header:
            self._timer = self.loop.call_later(HEADER_S, self._expire, self.cycle)

    @property
    def _awaits_header(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expire(self, answered: Any) -> None:
        """Close the connection if no header was completed after the request `answered`; otherwise limit the next
        header."""
        self._timer = None
        if self.cycle is answered and self._awaits_header:
            self.transport.abort()
        else:
            self._limit_header()
