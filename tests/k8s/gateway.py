"""A proxy between an operator and the API server: counts calls, acts as a service account, and kills at a chosen write.

For a server without scheduling gates (before 1.27) it emulates them by an annotation of the pods.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.k8s.api import Document

GATES = "suite.kofn.dev/gates"
HOPS = {"host", "authorization", "content-length", "accept-encoding", "connection"}
APART = ("events", "leases", "subjectaccessreviews", "mutatingwebhookconfigurations", "validatingwebhookconfigurations")
"""Writes that are no steps of a request."""


class Gateway:
    """`client` is the server's; `user`: the account to act as; `gates`: whether gates are emulated."""

    def __init__(self, client: httpx2.AsyncClient, *, user: str = "", gates: bool = False) -> None:
        self._client, self._gates = client, gates
        self._headers = {"Impersonate-User": user} if user else {}
        self.calls: Counter[str] = Counter()
        self.writes: list[str] = []
        """The steps, in order."""
        self.dies_after: int | None = None
        self.kill: Callable[[], None] = lambda: None
        """Called at that write, which is carried out but not answered; no later write is carried out."""
        self._writing = asyncio.Lock()
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        self.app = Starlette(routes=[Route("/{path:path}", self._pass, methods=methods)])

    async def _pass(self, http: Request) -> Response:
        plural, sub = _named(http.url.path)
        body = await http.body()
        step = f"{http.method} {plural}{'/' + sub if sub else ''}"
        if http.method != "GET":
            self.calls[step] += 1
        elif http.query_params.get("watch") not in ("1", "true"):
            self.calls[f"GET {plural}"] += 1
        pods = self._gates and plural == "pods" and not sub
        headers = {key: value for key, value in http.headers.items() if key.lower() not in HOPS} | self._headers
        request = self._client.build_request(
            http.method,
            http.url.path,
            params=str(http.query_params),
            content=_inward(http.method, body) if pods else body,
            headers=headers,
        )
        counts = http.method != "GET" and plural not in APART
        answer = await (self._write(request, step) if counts else self._client.send(request, stream=True))
        if answer is None:
            return Response(status_code=503)
        kind = answer.headers.get("content-type", "")
        if http.query_params.get("watch") in ("1", "true") and answer.status_code == 200:
            return StreamingResponse(self._lines(answer, pods=pods), media_type=kind)
        content = await answer.aread()
        await answer.aclose()
        if pods and answer.status_code < 300:
            content = json.dumps(_outward(json.loads(content))).encode()
        return Response(content, status_code=answer.status_code, media_type=kind)

    async def _write(self, request: httpx2.Request, step: str) -> httpx2.Response | None:
        """Carry out a write; None: the writer is dead. If it is to die, writes are made one after another."""
        async with self._writing if self.dies_after else nullcontext():
            if len(self.writes) == self.dies_after:
                return None
            answer = await self._client.send(request, stream=True)
            if answer.status_code < 300:
                self.writes.append(step)
                if len(self.writes) == self.dies_after:
                    await answer.aclose()
                    self.kill()
                    return None
            return answer

    async def _lines(self, answer: httpx2.Response, *, pods: bool) -> AsyncIterator[bytes]:
        try:
            async for line in answer.aiter_lines():
                yield (json.dumps(_outward(json.loads(line))) if pods else line).encode() + b"\n"
        except httpx2.HTTPError:
            return
        finally:
            await answer.aclose()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve, and yield the address."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(256)
            config = uvicorn.Config(self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await asyncio.gather(serving, return_exceptions=True)


def _named(path: str) -> tuple[str, str]:
    """Return the plural and the subresource of a path."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    plural, _, sub = (*rest, "", "", "")[:3]
    return plural, sub


def _inward(method: str, body: bytes) -> bytes:
    """Turn gates into an annotation."""
    if method == "POST":
        pod = json.loads(body)
        if gates := pod["spec"].get("schedulingGates"):
            pod["metadata"].setdefault("annotations", {})[GATES] = json.dumps(gates)
        return json.dumps(pod).encode()
    if method == "PATCH":
        patch = json.loads(body)
        if "schedulingGates" in patch.get("spec", {}):
            assert patch["spec"].pop("schedulingGates") is None
            patch.setdefault("metadata", {}).setdefault("annotations", {})[GATES] = None
        return json.dumps(patch).encode()
    return body


def _outward(document: Any) -> Any:
    """Turn the annotation back into gates, in a pod, a list of pods, or a change of one."""
    if isinstance(document, dict):
        for pod in [document, document.get("object"), *document.get("items", ())]:
            _show(pod)
    return document


def _show(pod: Document | None) -> None:
    gates = ((pod or {}).get("metadata") or {}).get("annotations", {}).get(GATES)
    if pod is not None and gates:
        pod["spec"]["schedulingGates"] = json.loads(gates)
