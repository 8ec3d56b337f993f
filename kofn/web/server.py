"""The page of a run and its metrics over HTTP, on the loopback interface alone.

All answers except errors need the token: in the query of the first request, in the cookie that the first answer sets,
or as a bearer token (Prometheus). Requests for other host names than the loopback's are refused (DNS rebinding).
"""

import asyncio
import base64
import functools
import hashlib
import hmac
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kofn.web.connections import CONNECTIONS_MOST, LimitedProtocol
from kofn.web.metrics import exposition
from kofn.web.reader import RunReader
from kofn_common.config.errors import ConfigError
from kofn_common.numerals import is_numeral

LOOPBACK = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
TOKEN_VARIABLE = "KOFN_WEB_TOKEN"
POLL_S = 0.1
CLOSE_S = 2.0
"""The time to complete running answers at the end."""

INLINE = (PAGE / "index.html").read_text().partition("<script>")[2].partition("</script>")[0]
"""The page's one inline script: it reloads the page when one of its files is lost."""

INLINE_HASH = base64.b64encode(hashlib.sha256(INLINE.encode()).digest()).decode()

HEADERS = {
    "Content-Security-Policy": f"default-src 'self'; script-src 'self' 'sha256-{INLINE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

REFUSED = "403: this page needs the token of the URL that kofn has printed\n"


class Token:
    """Lets requests with the token pass, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        """Name the cookie after the port: cookies are shared by all ports of a host."""
        self._app, self._token, self._cookie = app, token, f"kofn_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        asked = request.query_params.get("token", "")

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if self._is_token(asked):
                    headers["Set-Cookie"] = (
                        f"{self._cookie}={quote(self._token, safe='')}; HttpOnly; SameSite=Strict; Path=/"
                    )
            await send(message)

        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if any(map(self._is_token, (asked, bearer, unquote(request.cookies.get(self._cookie, ""))))):
            await self._app(scope, receive, answer)
        else:
            await PlainTextResponse(REFUSED, status_code=403)(scope, receive, answer)

    def _is_token(self, given: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(given.encode(), self._token.encode())


class PageServer:
    """Serves one run from a separate thread.

    with PageServer(RunReader(folder, over=...), port=0) as page:
        print(page.url)
    """

    def __init__(self, reader: RunReader, *, port: int = 0) -> None:
        """Bind the port; 0: any free port. Raise ConfigError if the port is taken."""
        self._reader = reader
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((LOOPBACK, port))
            self._socket.listen()  # early clients wait until the thread serves
        except OSError as error:
            self._socket.close()
            raise ConfigError(f"cannot serve the page at port {port}: {error.strerror}; 0 takes a free port") from None
        self.port = int(self._socket.getsockname()[1])
        self.token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(16)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(reader, self.token, self.port, closing=lambda: self._server.should_exit),
                log_level="warning",
                lifespan="off",
                ws="none",
                http=LimitedProtocol,
                backlog=CONNECTIONS_MOST,  # at most so many connections are accepted at once
                timeout_graceful_shutdown=int(CLOSE_S),
            )
        )
        serve = functools.partial(self._server.run, sockets=[self._socket])
        self._thread = threading.Thread(target=serve, name="page", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/?token={quote(self.token, safe='')}"

    def __enter__(self) -> "PageServer":
        """Start to serve."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Complete running answers, and end."""
        self._server.should_exit = True
        self._thread.join(2 * CLOSE_S)
        self._socket.close()
        self._reader.close()

    def wait(self) -> None:
        """Wait for an interrupt."""
        self._thread.join()


def application(reader: RunReader, token: str, port: int, *, closing: Callable[[], bool]) -> Starlette:
    """Return the application: the page at /, frames at /frames until `closing`, /metrics, and the page's files."""

    async def frames(request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        first = int(last) + 1 if is_numeral(last) else 0
        return StreamingResponse(stream(reader, first, closing), media_type="text/event-stream")

    async def metrics(_: Request) -> Response:
        reader.poll()
        return Response(exposition(reader), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Starlette(
        routes=[
            Route("/frames", frames),
            Route("/metrics", metrics),
            Mount("/", StaticFiles(directory=PAGE, html=True)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"]),
            Middleware(Token, token=token, port=port),
        ],
    )


async def stream(reader: RunReader, first: int, closing: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield server-sent events: `run` with the header, then a `frame` for every frame from number `first` on; `live`
    with the reason to wait while the run goes on; and `end`."""
    yield event("run", msgspec.json.encode(reader.header))
    waiting: str | None = None
    reader.watchers += 1
    try:
        while True:
            reader.poll()
            while first < len(reader.frames):
                several = reader.frames[first : first + 100]
                yield b"".join(event("frame", frame, first + number) for number, frame in enumerate(several))
                first += len(several)
            if reader.over:
                yield event("end", b"{}")
            if reader.over or closing():
                return
            if waiting != reader.waiting:
                waiting = reader.waiting
                yield event("live", msgspec.json.encode(waiting))
            await asyncio.sleep(POLL_S)
    finally:
        reader.watchers -= 1


def event(kind: str, data: bytes, number: int | None = None) -> bytes:
    """Return a server-sent event; a client that reconnects asks for the events after `number`."""
    mark = b"" if number is None else b"id: %d\n" % number
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), mark, data)
