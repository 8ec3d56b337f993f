"""The server of a network: it obeys JSON lines on stdin, and watches the processes that it has started.

This module must not know how a network is made.
"""

import json
import os
import select
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from errors import NetworkError
from links import check_rate
from network import Network
from processes import Children

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CHECK = "check"
"""The id of the process that runs the checks."""

Commands = dict[str, tuple[dict[str, Any], dict[str, Any]]]
"""By command: needed and optional fields with their types."""

COMMANDS: Commands = {
    "start": ({"id": str, "node": str, "argv": list}, {"env": dict, "log": str, "cwd": str}),
    "signal": ({"id": str, "signal": str}, {}),
    "limit": ({"id": str, "share": (int, float)}, {}),
    "check": ({}, {}),
    "shape": ({"host": str, "mbps": (int, float, type(None))}, {}),
    "stop": ({}, {}),
}
"""The commands on stdin of a network."""


class Stop(Exception):  # noqa: N818  # not an error, but the way out of the loop
    """The network must be removed."""


class Out:
    """Standard output."""

    def __init__(self) -> None:
        """Wait for a reader as long as it takes."""
        self._longest_s: float | None = None

    def write(self, data: bytes) -> None:
        """Write all of the data. Raise BrokenPipeError if the reader has gone, or reads nothing for too long."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(1, left) :]
            except BlockingIOError:
                if not select.select([], [1], [], self._longest_s)[1]:
                    raise BrokenPipeError from None

    @contextmanager
    def waits(self, longest_s: float) -> Iterator[None]:
        """Within the block, wait for a reader at most this long."""
        os.set_blocking(1, False)
        self._longest_s = longest_s
        try:
            yield
        finally:
            self._longest_s = None
            os.set_blocking(1, True)


OUT = Out()


def emit(event: str, **fields: Any) -> None:
    """Print one event. If the reader has gone, that is no error here, because stdin will end, too."""
    try:
        OUT.write(json.dumps({"event": event, **fields}).encode() + b"\n")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class BootServer:
    """Obeys stdin and watches the children, until a command stops it."""

    commands = COMMANDS

    def __init__(self) -> None:
        """Serve no network at first."""
        self._made: tuple[Network, Children] | None = None
        self._selector = selectors.PollSelector()  # epoll refuses a stdin that is a file or /dev/null
        self._pending = b""
        self._checks: subprocess.Popen[bytes] | None = None
        self._result: dict[str, Any] | None = None

    def take(self, network: Network, children: Children) -> None:
        """Serve a network that runs, with processes inside."""
        self._made = network, children

    @property
    def _network(self) -> Network:
        return self._both[0]

    @property
    def _children(self) -> Children:
        return self._both[1]

    @property
    def _both(self) -> tuple[Network, Children]:
        if self._made is None:
            raise NetworkError("the network must be made before it is used")
        return self._made

    def serve(self, signals: int) -> None:
        """Obey stdin until Stop; signal numbers are read from the descriptor `signals`."""
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._commands)
        self._selector.register(signals, selectors.EVENT_READ, self._signals)
        while True:
            for key, _ in self._selector.select(self._idle()):
                key.data(key.fd)

    def _idle(self) -> float | None:
        """Return how long to wait for stdin and the children; None: until something comes."""
        return None

    def end(self) -> None:
        """End the children."""
        if self._made is None:
            return
        self._network.record.stop_begins()
        for name, code in self._children.end():
            if name != CHECK:
                emit("exited", id=name, code=code)

    def _signals(self, descriptor: int) -> None:
        numbers = os.read(descriptor, 4096)
        if any(number in numbers for number in STOP_SIGNALS):
            raise Stop
        self._reap()

    def _reap(self) -> None:
        if self._made is None:
            return
        for name, code in self._children.reap():
            if name != CHECK:
                emit("exited", id=name, code=code)

    def _commands(self, descriptor: int) -> None:
        data = os.read(descriptor, 65536)
        if not data:
            raise Stop
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._obey(parse_command(line, self.commands))

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "start":
                self._start(command)
            case "signal":
                self._children.signal(command["id"], command["signal"])
            case "limit":
                name, share = command["id"], command["share"]
                emit("limited", id=name, missed=self._children.limit(name, share, self._network.root))
            case "check":
                self._check()
            case "shape":
                mbps = check_rate(command["mbps"], "shape: mbps")
                self._network.shape(command["host"], mbps)
                emit("shaped", host=command["host"], mbps=mbps)
            case "stop":
                raise Stop

    def _start(self, command: dict[str, Any]) -> None:
        child = self._children.start(
            command["id"],
            self._network.namespace(command["node"]),
            command["argv"],
            env=command.get("env", {}),
            log=Path(command["log"]) if "log" in command else None,
            cwd=Path(command["cwd"]) if "cwd" in command else None,
        )
        emit("started", id=command["id"], pid=child.pid)

    def _check(self) -> None:
        """Run the checks in a separate process: they take seconds, and this process must obey a stop meanwhile."""
        argv = [sys.executable, str(Path(__file__).with_name("checks.py")), json.dumps(self._network.describe())]
        self._result = None
        self._checks = self._children.start(CHECK, self._network.root, argv, env={}, stdout=subprocess.PIPE)
        assert self._checks.stdout is not None
        self._selector.register(self._checks.stdout, selectors.EVENT_READ, lambda _: self._relay())

    def _relay(self) -> None:
        """Pass on one line of the checks. The checks' result is sent when their process has ended, so that new checks
        may start."""
        assert self._checks is not None and self._checks.stdout is not None
        line = self._checks.stdout.readline()
        event = json.loads(line) if line else {}
        if event.get("event") == "check":
            emit(**event)
        elif event:
            self._result = event
        else:
            self._checks_ended(self._checks, self._checks.stdout)

    def _checks_ended(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._selector.unregister(output)
        output.close()
        process.wait()
        self._reap()
        if self._result is None:
            raise NetworkError(
                f"the checks ended with code {process.returncode} and no result: see their log or stderr"
            )
        emit(**self._result)


def parse_command(line: bytes, commands: Commands) -> dict[str, Any]:
    """Parse and check one line of stdin; NetworkError names the wrong field."""
    try:
        command = json.loads(line)
    except ValueError as error:
        raise NetworkError(f"command {line!r} is not JSON: {error}") from error
    if not isinstance(command, dict) or command.get("do") not in commands:
        raise NetworkError(f"command {line!r}: do must be one of {', '.join(commands)}")
    needed, optional = commands[command["do"]]
    allowed = {**needed, **optional}
    for field in needed:
        if field not in command:
            raise NetworkError(f"command {command['do']} must have {', '.join(needed)}, got no {field}")
    for field, value in command.items():
        if field != "do" and (field not in allowed or not isinstance(value, allowed[field])):
            raise NetworkError(f"command {command['do']}: fields must be {_form(allowed)}, got {field} = {value!r}")
    _strings(command.get("argv", ["x"]), f"command {command['do']}: argv")
    _strings([*command.get("env", {}).values()], f"command {command['do']}: env")
    return command


def _form(fields: dict[str, Any]) -> str:
    names = [f"{name} ({getattr(kind, '__name__', 'number or null')})" for name, kind in fields.items()]
    return ", ".join(names) or "none"


def _strings(values: list[Any], what: str) -> None:
    if not all(isinstance(value, str) for value in values) or (what.endswith("argv") and not values):
        raise NetworkError(f"{what} must be strings (argv: one or more), got {values!r}")


def watch_signals() -> int:
    """Return a descriptor from which each signal can be read, as one byte with the signal's number."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader
