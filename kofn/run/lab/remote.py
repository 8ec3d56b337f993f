"""Scripts on the machines of a laboratory, and commands here that belong to them: they end with this process."""

import contextlib
import subprocess
from collections.abc import Callable, Sequence
from threading import Lock, Thread

from kofn.run.errors import RunError
from kofn.run.lab.connection import command
from kofn.run.lab.lab_file import LabMachine

Said = Callable[[str], None]
"""Takes a line that a command has written."""


class FailedCommand(RunError):  # noqa: N818 - a RunError
    """A command that ended with an exit code."""

    def __init__(self, code: int, words: Sequence[str]) -> None:
        """Take the lines of its errors; the last one tells the reason."""
        super().__init__(words[-1] if words else f"exit code {code}")
        self.code, self.words = code, words


class Commands:
    """Runs commands in threads; `end()`, from another thread, ends them all.

    commands = Commands()
    commands.on(machine, "uname -r")
    """

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended, self._lock = False, Lock()

    def on(self, machine: LabMachine, script: str, data: bytes = b"", said: Said = lambda line: None) -> str:
        """Run a shell's script on a machine, as here() runs a command."""
        return self.here(command(machine, script), data, said)

    def here(self, argv: Sequence[str], data: bytes = b"", said: Said = lambda line: None) -> str:
        """Run a command with `data` as its input; return its output. `said` gets the lines of its errors.
        FailedCommand if the command fails."""
        words: list[str] = []

        def listen() -> None:
            for line in process.stderr or ():
                words.append(line.decode(errors="replace").strip())
                said(words[-1])

        with self._started(argv) as process:
            listener = Thread(target=listen)
            listener.start()
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # its words tell why it has ended
                process.stdin.write(data)
                process.stdin.close()
            output = process.stdout.read().decode(errors="replace")
            listener.join()
        with self._lock:
            self._running.discard(process)
        if process.returncode:
            raise FailedCommand(process.returncode, [line for line in words if line])
        return output

    def _started(self, argv: Sequence[str]) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._ended:
                raise RunError("interrupted")
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._running.add(process)
            return process

    def end(self) -> None:
        """End all commands, and refuse further ones."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.terminate()
