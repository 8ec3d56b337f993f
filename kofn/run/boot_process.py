"""A boot.py at the other end of a pipe, on this machine or another: JSON lines over its stdin and stdout."""

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from kofn.run.errors import RunError
from kofn_common.config.errors import KofnError
from kofn_common.results.logs import tail

LINE_BYTES = 1 << 20
"""The longest line of boot.py."""

LAST_LINES_S = 2.0
"""The longest wait for the last lines of a process that has ended."""

CHECK = "check"
"""The event with one check's result."""


class BootProcess:
    """A running boot.py.

    boot = await BootProcess.start(argv, log=Path("boot.log"))
    ready = await boot.wait("ready", "", 60.0)
    await boot.send(do="signal", id="switch", signal="KILL")
    await boot.stop()
    """

    name = "the network process"

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.failure: str | None = None
        """Why nothing more can be asked of boot.py; None while it obeys."""
        self.at_failure: Callable[[str], None] = lambda message: None
        self._process, self._log = process, log
        self._waiting: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}
        self._checks = 0
        self._stopped = False
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, argv: Sequence[str], *, log: Path, **more: Any) -> Self:
        """Start the command line that runs boot.py; its stderr goes to `log`."""
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                limit=LINE_BYTES,
                start_new_session=True,  # the terminal's Ctrl-C goes to the runner, which stops all processes in order
            )
        return cls(process, log, **more)

    def future(self, event: str, name: str) -> asyncio.Future[dict[str, Any]]:
        """Return the next event of this kind about this name, which may have come already."""
        key = (event, name)
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            if self.failure is not None:
                self._waiting[key].set_exception(RunError(self.failure))
        return self._waiting[key]

    def forget(self, event: str, name: str) -> None:
        """Wait for a new event of this kind from now on."""
        self._waiting.pop((event, name), None)

    async def wait(self, event: str, name: str, timeout_s: float) -> dict[str, Any]:
        """Wait for an event. Raise RunError after `timeout_s`, or if boot.py fails."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self.future(event, name))
        except TimeoutError:
            what = f"{event} {name}".strip()
            raise RunError(f"{self.name} did not answer {what!r} within {timeout_s:g} s; see {self._log}") from None
        finally:
            if event != "exited":
                self.forget(event, name)

    async def check(self, timeout_s: float) -> AsyncIterator[dict[str, Any]]:
        """Let boot.py check its network; yield each result, in order."""
        self._checks = 0
        await self.send(do="check")
        for number in itertools.count():
            event = await self.wait(CHECK, str(number), timeout_s)
            if event["event"] != CHECK:
                return
            yield event

    def post(self, **command: Any) -> None:
        """Send a command without waiting until boot.py's end of the pipe takes it."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")

    async def send(self, **command: Any) -> None:
        """Send a command. Raise RunError if boot.py has failed."""
        if self.failure is not None:
            raise RunError(self.failure)
        assert self._process.stdin is not None
        try:
            self.post(**command)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise RunError(self.failure or self._ended()) from None

    async def stop(self, timeout_s: float) -> None:
        """Let boot.py end its processes and remove its network; kill it if that takes too long."""
        if self._process.returncode is None:
            with contextlib.suppress(KofnError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.send(do="stop")
            if self._process.stdin is not None:
                self._process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._process.wait()
        if self._process.returncode is None:
            self.kill()
            await self._process.wait()

    async def close(self) -> None:
        """Forget all that was asked of an ended boot.py, after its last lines were read."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_LINES_S):
                await asyncio.gather(self._reader, return_exceptions=True)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        for future in self._waiting.values():
            future.cancel()

    def kill(self) -> None:
        """Send SIGKILL to the process at this end of the pipe, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    @property
    def clean(self) -> bool:
        """Whether boot.py has ended by itself. Before boot.py ends by itself, it removes everything, also after an
        error."""
        return self._process.returncode in (0, 2)

    def fail(self, message: str) -> None:
        """Fail every waiting call, and every call from now on, with the first failure."""
        if self.failure is None:
            self.failure = message
            self.at_failure(message)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RunError(self.failure))
                future.exception()  # asyncio warns of an exception that was never read

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                self._handle(msgspec.json.decode(line, type=dict[str, Any]))
        except ValueError as error:
            self.fail(f"{self.name} must write events, got another line: {error}; see {self._log}")
        if not self._stopped:
            self.fail(self._ended())

    def _ended(self) -> str:
        return f"{self.name} has ended (log: {self._log}):\n{tail(self._log)}"

    def _handle(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "check" | "checked"}:
                self.future(CHECK, str(self._checks)).set_result(event)
                self._checks += 1
            case {"event": "error", "message": message}:
                self.fail(f"network: {message}")
            case {"event": "stopped"}:
                self._stopped = True
            case {"event": name}:
                future = self.future(name, event.get("id", ""))
                if not future.done():
                    future.set_result(event)
