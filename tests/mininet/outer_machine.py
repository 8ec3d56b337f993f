"""boot.py in a separate network namespace, so that no test meets an active network of this machine."""

import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self, cast

FOLDER = Path(__file__).resolve().parents[2] / "mininet"
PYTHON = "/usr/bin/python3"
PATIENCE_S = 60.0
"""So long that only a hang reaches it, not a busy machine."""

ATTEMPTS = 5


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for a condition; the kernel removes namespaces and processes with a delay."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Boot:
    """A started boot.py, and its events."""

    def __init__(self, argv: list[str], state: Path, stdin: int) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "KOFN_STATE_DIR": str(state), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def send(self, **command: Any) -> None:
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    def event(self) -> dict[str, Any]:
        ready, _, _ = select.select([cast(IO[bytes], self.process.stdout)], [], [], PATIENCE_S)
        assert ready, f"no event for {PATIENCE_S} s"
        line = self.process.stdout.readline()
        assert line, f"boot.py ended with code {self.process.wait()}"
        return json.loads(line)

    def expect(self, name: str) -> dict[str, Any]:
        event = self.event()
        assert event["event"] == name, event
        return event

    def check(self) -> tuple[bool, dict[str, dict[str, Any]]]:
        """Run the checks; return whether all are good, and each one by name."""
        self.send(do="check")
        found = {}
        while (event := self.event())["event"] == "check":
            found[event["name"]] = event
        assert event["event"] == "checked", event
        return event["ok"], found

    def good_checks(self) -> dict[str, dict[str, Any]]:
        """Return the checks, by name, of the first attempt in which all are good and every link is full; on a busy
        machine a check may time out or send too little."""
        for _ in range(ATTEMPTS):
            good, found = self.check()
            if good and not any("processors" in check["detail"] for check in found.values()):
                break
        assert good, found
        return found

    def refuses(self) -> str:
        """Return the message of an error, after which it must have ended with code 2."""
        message = self.expect("error")["message"]
        assert self.process.wait(PATIENCE_S) == 2
        assert "\n" not in message
        return message


class Machine:
    """An outer network namespace in place of the whole machine, and a folder for records."""

    def __init__(self, holder: subprocess.Popen[bytes], state: Path) -> None:
        self._enter = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        self.state = state

    def run(self, *argv: str, inside: str | None = None) -> str:
        """Return a command's output, in this machine or inside a host's namespace."""
        enter = [*self._enter] if inside is None else ["nsenter", f"--net={inside}"]
        return subprocess.run([*enter, *argv], check=True, capture_output=True, text=True).stdout

    def boot(self, *arguments: str, before: tuple[str, ...] = (), stdin: int = subprocess.PIPE) -> Boot:
        return Boot([*self._enter, *before, PYTHON, str(FOLDER / "boot.py"), *arguments], self.state, stdin)

    def clean(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._enter, PYTHON, str(FOLDER / "boot.py"), "--clean"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "KOFN_STATE_DIR": str(self.state), "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def interfaces(self) -> set[str]:
        return {link["ifname"] for link in json.loads(self.run("ip", "-json", "link"))}

    def bridge(self, ready: dict[str, Any]) -> None:
        """Create a Linux bridge in each switch's place."""
        for number, switch in enumerate(ready["switches"]):
            bridge = f"bridge{number}"
            self.run("ip", "link", "add", bridge, "type", "bridge")
            for name in switch["interfaces"].values():
                self.run("ip", "link", "set", name, "master", bridge)
            self.run("ip", "link", "set", bridge, "mtu", "9000", "up")
