"""A command's call to a controller: the choice of certificates, and errors in words."""

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import grpc

from kofn.run.state import running
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.address import checked_address, unknown_host
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.failures import refused_handshake
from kofn_common.rpc.security import CONTROLLER, OPERATOR, Credentials, channel

Answer = TypeVar("Answer")

EXIT_REFUSED = 2
EXIT_NO_CONTROLLER = 3
TIMEOUT_S = 3.0

CERTS_HELP = "Folder of certificates (kofn certs).  [env: KOFN_CERTS; default: those of the current run]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The controller that a command asks, the job, and the form of the answer."""

    address: str
    certs: Path | None
    job: int  # 0: the controller's first job
    as_json: bool

    def ask(self, call: Callable[[Any], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make a call of the Inspector; if it fails, end the process with a line and an exit code."""
        try:
            return asyncio.run(self._call(call))
        except SecurityError as error:
            _end(str(error), EXIT_REFUSED)
        except grpc.aio.AioRpcError as error:
            _end(*self._explain(error))

    async def _call(self, call: Callable[[Any], Coroutine[Any, Any, Answer]]) -> Answer:
        credentials = Credentials.load(self._folder, OPERATOR, [self.job] if self.job else [])
        async with channel(credentials, self.address, CONTROLLER) as line:
            return await call(kofn_pb2_grpc.InspectorStub(line))

    @property
    def _folder(self) -> Path | None:
        """The folder of certificates; None: plaintext, because there are no certificates."""
        if self.certs is not None or (run := running()) is None:
            return self.certs
        folder = Path(run.folder) / "certs"
        return folder if folder.is_dir() else None

    def _explain(self, error: grpc.aio.AioRpcError) -> tuple[str, int]:
        """Return the error and its remedy in words, and the exit code."""
        folder = self._folder
        used = f"{folder}" if folder else "none"
        if reason := refused_handshake(error, secure=folder is not None):
            advice = "--certs DIR must be the folder of the controller's certificates (RUNFOLDER/certs of a run)"
            return f"{self.address} answers, but {reason} (certificates: {used}): {advice}", EXIT_REFUSED
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            advice = unknown_host(self.address) or "`make run` or `kofn run` starts a controller"
            return f"no controller answers at {self.address}: {advice}", EXIT_NO_CONTROLLER
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            advice = "--certs DIR names the folder that this controller was started with"
            return f"{self.address} refuses the token ({error.details()}; certificates: {used}): {advice}", EXIT_REFUSED
        return error.details() or error.code().name, EXIT_REFUSED


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"kofn: {message}", err=True)
    sys.exit(code)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that asks a controller; the command gets an `Asking` as its first argument."""

    @click.option(
        "--controller",
        "address",
        type=checked_address,
        default="127.0.0.1:50052",
        envvar="KOFN_CONTROLLER",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The controller to ask.",
    )
    @click.option("--certs", type=click.Path(path_type=Path), envvar="KOFN_CERTS", metavar="DIR", help=CERTS_HELP)
    @click.option("--job", type=click.IntRange(1, 255), metavar="N", help="The job's id.  [default: the first job]")
    @click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
    @functools.wraps(command)
    def wrapper(*, address: str, certs: Path | None, job: int | None, as_json: bool, **options: Any) -> None:
        command(Asking(address=address, certs=certs, job=job or 0, as_json=as_json), **options)

    return wrapper
