"""gRPC on the management network: mutual TLS and a token in every call, or plaintext without credentials.

    credentials = Credentials.load(folder, worker_name(1, 3), [1])   # returns None for folder None: plaintext
    async with channel(credentials, "172.30.255.1:50052", CONTROLLER) as line: ...
    server = grpc_server(credentials)
    port = add_port(server, "172.30.255.5:0", credentials)

A caller whose certificate is not signed by the folder's authority fails in the handshake. A caller without a valid
token gets UNAUTHENTICATED from every method. The services use `permit` to decide what a caller may do.
"""

import asyncio
import contextlib
import contextvars
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc

from kofn_common.rpc.credentials import Credentials
from kofn_common.rpc.garbage import quieten
from kofn_common.rpc.names import CONTROLLER, OPERATOR, Identity, host_name, identity, worker_name

__all__ = [
    "CONTROLLER",
    "OPERATOR",
    "Credentials",
    "add_port",
    "channel",
    "grpc_server",
    "peer_identity",
    "permit",
    "reconnect",
    "token_job",
    "worker_name",
]

TOKEN_KEY = "kofn-token"
REFUSED_WITHIN_S = 0.1

Options: TypeAlias = Sequence[tuple[str, Any]]
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_token_job: contextvars.ContextVar[int | None] = contextvars.ContextVar("token_job", default=None)
"""The job whose token came with the current call."""


def channel(credentials: Credentials | None, address: str, peer: str, options: Options = ()) -> grpc.aio.Channel:
    """Return a channel to the process with the certificate of `peer` (`CONTROLLER`, `worker_name(job, rank)`).

    The first of the credentials' tokens goes with every call.
    """
    options = [("grpc.enable_http_proxy", 0), *options]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    for token in list(credentials.tokens.values())[:1]:
        secure = grpc.composite_channel_credentials(secure, grpc.metadata_call_credentials(_Token(token)))
    options = [("grpc.ssl_target_name_override", host_name(peer)), *options]
    return grpc.aio.secure_channel(address, secure, options=options)


def reconnect(first_ms: int, most_ms: int) -> Options:
    """Return options that let the pause between connection attempts grow from `first_ms` to `most_ms`."""
    return [
        (f"grpc.{name}_reconnect_backoff_ms", ms)
        for name, ms in (("initial", first_ms), ("min", first_ms), ("max", most_ms))
    ]


def grpc_server(credentials: Credentials | None, options: Options = ()) -> grpc.aio.Server:
    """Return a server that listens on no port yet."""
    interceptors = [] if credentials is None else [_Guard(credentials.tokens)]
    quieten()
    return grpc.aio.server(interceptors=interceptors, options=options)


def add_port(server: grpc.aio.Server, address: str, credentials: Credentials | None) -> int:
    """Listen at an address and return the port; if it is not available, gRPC returns 0 or raises RuntimeError."""
    if credentials is None:
        return server.add_insecure_port(address)
    pair = (credentials.key, credentials.certificate)
    secure = grpc.ssl_server_credentials([pair], credentials.authority, require_client_auth=True)
    return server.add_secure_port(address, secure)


def peer_identity(context: Context) -> Identity | None:
    """Return the identity in the caller's certificate; None in plaintext, or if it has not exactly one known
    name."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    found = [who for name in names if (who := identity(name.decode(errors="replace"))) is not None]
    return found[0] if len(found) == 1 else None


def token_job() -> int | None:
    """Return the job whose token came with the present call; None in plaintext."""
    return _token_job.get()


async def permit(context: Context, *allowed: tuple[str | int, ...]) -> None:
    """End the call with PERMISSION_DENIED unless the caller is one of these; in plaintext every caller passes.

    An entry may be a prefix: ("worker", 1) is every worker of job 1. A worker must also have its own job's token.
    """
    job = token_job()
    if job is None:
        return
    caller = peer_identity(context)
    if caller is None or not any(caller[: len(entry)] == entry for entry in allowed):
        await _deny(context, f"the caller must be {_one_of(allowed)}, your certificate is {_words(caller)}")
    elif len(caller) == 3 and caller[1] != job:
        await _deny(context, f"your certificate is {_words(caller)}, but your token is of job {job}")


async def _deny(context: Context, reason: str) -> None:
    """Abort the call with PERMISSION_DENIED."""
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


class _Token(grpc.AuthMetadataPlugin):
    """Adds the token to every call."""

    def __init__(self, token: str) -> None:
        self._metadata = ((TOKEN_KEY, token),)

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        callback(self._metadata, None)


class _Guard(grpc.aio.ServerInterceptor):
    """Lets calls with a token of one of these jobs pass."""

    def __init__(self, tokens: Mapping[int, str]) -> None:
        self._tokens = {job: token.encode() for job, token in tokens.items()}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's own handler, or a handler that refuses unary and streaming calls."""
        shown = [value for key, value in handler_call_details.invocation_metadata or () if key == TOKEN_KEY]
        job = self._job_of(shown[0]) if len(shown) == 1 else None
        if job is None:
            return grpc.stream_stream_rpc_method_handler(_refuse_missing if not shown else _refuse_wrong)
        _token_job.set(job)
        return await continuation(handler_call_details)

    def _job_of(self, shown: str | bytes) -> int | None:
        """Return the token's job, or None; compares with all tokens in constant time."""
        value = shown.encode() if isinstance(shown, str) else shown
        found = [job for job, token in self._tokens.items() if hmac.compare_digest(token, value)]
        return found[0] if found else None


async def _refuse_missing(requests: AsyncIterator[bytes], context: Context) -> None:
    """Answer a call without a token."""
    await _refuse(requests, context, f"the call must have a job's token ({TOKEN_KEY}), got none")


async def _refuse_wrong(requests: AsyncIterator[bytes], context: Context) -> None:
    """Answer a call with a wrong token."""
    await _refuse(requests, context, "not the token of a job that is served here")


async def _refuse(requests: AsyncIterator[bytes], context: Context, reason: str) -> None:
    """Refuse the call after its caller has stopped sending, or after REFUSED_WITHIN_S.

    If the call were refused earlier, the caller could see INTERNAL instead.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_WITHIN_S):
            async for _ in requests:
                continue
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)


def _words(caller: Identity | None) -> str:
    """Describe an identity in an error message."""
    if caller is None:
        return "of an unknown name"
    return f"worker {caller[2]}'s of job {caller[1]}" if len(caller) == 3 else f"the {caller[0]}'s"


def _one_of(allowed: Sequence[tuple[str | int, ...]]) -> str:
    """Describe the permitted callers in an error message."""
    words = {1: "the {0}", 2: "a worker of job {1}", 3: "worker {2} of job {1}"}
    return " or ".join(words[len(entry)].format(*entry) for entry in allowed)
