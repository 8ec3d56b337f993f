"""A machine of a laboratory during a run: its boot.py, its clocks, and copies of the files that its processes write."""

import asyncio
import base64
import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kofn.run.boot_process import BootProcess
from kofn.run.errors import RunError
from kofn.run.lab.checkout import Checkout
from kofn.run.lab.clock import ClockComparison, Offset
from kofn.run.lab.connection import NONE, ForwardedPorts, boot
from kofn.run.lab.lab_file import LabMachine
from kofn.run.lab.translation import Translation
from kofn_common.config.errors import ConfigError
from kofn_common.results.logs import tail
from kofn_common.results.record import MachineRecord
from kofn_common.wall_clock import AHEAD_S

HERE_S = 30.0
"""The longest wait for a machine's first line, ssh's connection included."""

ALIVE_S = 1.0
SILENCE_S = 5.0
"""The longest time without a line from a machine."""

LAST_S = 8.0
"""The longest time without a line from a machine that ends its processes; these take six seconds at most."""

TOLD_S = 10.0
"""The longest time of a short command."""

ROUNDS = 8
"""Comparisons of clocks before a run."""

CHUNK_BYTES = 1 << 17

GIVEN_BYTES = 1 << 30
"""The most bytes of a folder of the user that is sent to machines."""

UNNEEDED = ("__pycache__", "runs")

CHECKPOINTS, MANIFEST = "checkpoints", "manifest.json"
PART = re.compile(rf"({CHECKPOINTS}/[0-9]+)\.part(?=/)")

ROOMS = ("common", "switch", "host", "controller", "pytorch", "p4src", ".")
"""The folders of a checkout with packages, for a Python that has kofn's requirements but not kofn."""


def given_files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder without hidden ones, caches and results. ConfigError if they are larger
    than GIVEN_BYTES."""
    if path.is_file():
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in UNNEEDED]
        found += [Path(folder) / name for name in names if not name.startswith(".")]
    if (size := sum(file.stat().st_size for file in found)) > GIVEN_BYTES:
        raise ConfigError(
            f"{path} must have at most {GIVEN_BYTES / 1e6:.0f} MB to be sent to machines, got {size / 1e6:.0f} MB: put "
            "the files that the job needs into a folder of their own"
        )
    return found


class ConnectedMachine(BootProcess):
    """A machine of a laboratory.

    machine = await ConnectedMachine.connect(described, checkout, run, log=run / "logs" / "node1.log")
    await machine.put(path)
    await machine.send(do="make", ...)
    """

    described: LabMachine

    @classmethod
    async def connect(
        cls, described: LabMachine, checkout: Checkout, run: Path, *, log: Path, ports: ForwardedPorts = NONE
    ) -> "ConnectedMachine":
        """Start boot.py on the machine, and compare clocks. RunError names the machine and the reason if that fails."""
        machine = await cls.start(boot(described, checkout, ports), log=log)
        machine._begin(described, run)
        try:
            here = await machine.wait("here", "", HERE_S)
            machine._know(here, checkout)
            for _ in range(ROUNDS):
                await machine._compare()
        except BaseException:
            await machine.stop(1.0)
            await machine.close()
            raise
        machine._heart = asyncio.create_task(machine._beat())
        return machine

    def _begin(self, described: LabMachine, run: Path) -> None:
        self.described, self.name = described, described.host
        self.clock = ClockComparison()
        self.at_checkpoint: Callable[[Path], None] = lambda path: None
        """Called with the folder of a checkpoint that is complete in the run's folder."""
        self._run = run.resolve()
        self._asked_s: float | None = None  # the time of a question for the clocks that is not answered yet
        self._heard = time.monotonic()
        self._heart: asyncio.Task[None] | None = None

    def _know(self, here: dict[str, Any], checkout: Checkout) -> None:
        places = {
            str(self._run): here["folder"],
            str(checkout.root): here["checkout"],
            sys.executable: here["python"],
        }
        self.translation = Translation(places)
        self.kernel, self.cores = str(here["kernel"]), int(here["cores"])
        self.relayed = bool(here["relayed"])
        self.user, self.python = int(here["user"]), str(here["python"])
        rooms = os.pathsep.join(f"{here['checkout']}/{room}" for room in ROOMS)
        self._modules = {"PYTHONPATH": rooms} if self.described.python else {}

    @property
    def offset(self) -> Offset:
        """The machine's clocks against this machine's."""
        assert self.clock.offset is not None, "connect() comes first"
        return self.clock.offset

    def record(self, nodes: Sequence[str]) -> MachineRecord:
        """Return what the run's record tells of the machine."""
        return MachineRecord(
            host=self.name,
            nodes=tuple(nodes),
            kernel=self.kernel,
            cores=self.cores,
            ahead_s=self.offset.real_s,
            monotonic_ahead_s=self.offset.monotonic_s,
            within_s=self.offset.within_s,
            drift_s=self.clock.drift_s,
        )

    def working_folder(self, path: Path) -> str:
        """Return the machine's folder for a process that has `path` as its working folder here."""
        place = str(path.resolve())
        return self.translation(place) if self.translation.knows(place) else self.translation(str(self._run))

    async def put(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        """Write a file of the run's folder on the machine."""
        name = str(path.resolve().relative_to(self._run))
        for begin in range(0, len(data) or 1, CHUNK_BYTES):
            piece = base64.b64encode(data[begin : begin + CHUNK_BYTES]).decode()
            more = begin + CHUNK_BYTES < len(data)
            await self.send(do="put", path=name, data=piece, mode=mode, more=more)

    async def make_folders(self) -> None:
        """Make all folders that the run's folder has now."""
        found = [path for path in self._run.rglob("*") if path.is_dir()]
        await self.send(do="folders", paths=[str(path.relative_to(self._run)) for path in found])

    async def share(self, folder: Path) -> None:
        """Put all files of a folder of the run."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                await self.put(path, path.read_bytes())

    async def give(self, path: Path, number: int) -> None:
        """Put a file, or a folder with its files, that the user's configuration names, as the run's `number`-th."""
        there = self._run / "given" / str(number) / path.name
        for file in given_files(path):
            await self.put(there / file.relative_to(path), file.read_bytes(), file.stat().st_mode & 0o777)
        self.translation = self.translation.extended(str(path), self.translation(str(there)))

    async def put_text(self, path: Path) -> None:
        """Put a text file, with the paths that it names as the machine has them."""
        await self.put(path, self.translation(path.read_text()).encode())

    async def told(self, *argv: str) -> tuple[int, str]:
        """Run a short command on the machine; return its exit code and what it printed."""
        await self.send(do="tell", argv=list(argv))
        answer = await self.wait("told", "", TOLD_S)
        return answer["code"], answer["said"].strip()

    def environment(self) -> dict[str, str]:
        """Return what every process on the machine has in its environment."""
        return {AHEAD_S: repr(self.offset.real_s)} | self._modules

    async def _compare(self) -> None:
        await self._ask()
        await self.wait("clock", "", SILENCE_S)

    async def _ask(self) -> None:
        self._asked_s = time.monotonic()
        await self.send(do="clock")

    async def _beat(self) -> None:
        """Let the machine hear of this one, and give it up if nothing is heard of it."""
        while self.failure is None:
            await asyncio.sleep(ALIVE_S)
            if time.monotonic() - self._heard > SILENCE_S:
                self.fail(f"{self.name}: nothing was heard of this machine for {SILENCE_S:g} s")
                self.kill()
                return
            with contextlib.suppress(RunError, TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    if self._asked_s is None:
                        await self._ask()

    def _handle(self, event: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        match event:
            case {"event": "file", "path": path, "offset": offset, "data": data}:
                self._write(path, offset, base64.b64decode(data), whole=event["whole"], more=event["more"])
            case {"event": "gone", "path": path}:
                self._gone(path)
            case {"event": "clock", "real": real, "monotonic": monotonic}:
                if self._asked_s is not None:
                    self.clock.answered(self._asked_s, real, monotonic)
                self._asked_s = None
                super()._handle(event)
            case {"event": "error", "message": message}:
                self.fail(f"{self.name}: {message}")
            case _:
                super()._handle(event)

    def _write(self, name: str, offset: int, data: bytes, *, whole: bool, more: bool) -> None:
        """Write a piece of a file that a process there has written: at the end of the file here, whose readers go on;
        or a piece of the whole file, which replaces the file here when it is complete."""
        path = self._here(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.part") if whole else path
        with written.open("r+b" if offset or not whole else "wb") as file:
            file.seek(offset)
            file.write(data)
        if whole and not more:
            written.replace(path)
            if path.name == MANIFEST:
                self.at_checkpoint(path.parent)

    def _gone(self, name: str) -> None:
        """Remove what a process there has removed: a checkpoint when its manifest has gone, any other file at once."""
        path = self._here(name)
        if path.name == MANIFEST:
            shutil.rmtree(path.parent, ignore_errors=True)
        elif path.parent.parent.name != CHECKPOINTS:
            path.unlink(missing_ok=True)

    def _here(self, name: str) -> Path:
        """Return the place of a machine's file in the run's folder.

        Workers write a checkpoint to a folder ITERATION.part, and one worker renames it. Here, the files of all
        machines meet in the folder that the checkpoint has in the end; it is whole when its manifest is there.
        """
        path = (self._run / PART.sub(r"\1", name)).resolve()
        if not path.is_relative_to(self._run):
            raise ValueError(f"a file must stay in the run's folder, got {name!r}")
        return path

    def _ended(self) -> str:
        words = tail(self._log, 3).strip()
        return f"{self.name}: the connection has ended: {words or 'without a word'} (log: {self._log})"

    async def stop(self, timeout_s: float) -> None:
        """Let boot.py end, and send what processes there have written last. Wait for it as long as it sends, and then
        for `timeout_s`."""
        if self.failure is None:
            with contextlib.suppress(RunError):
                self.post(do="stop")
                while self._process.returncode is None and time.monotonic() - self._heard < LAST_S:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(ALIVE_S):
                            await self._process.wait()
        await super().stop(timeout_s)

    async def close(self) -> None:
        """End the heartbeats, and cancel all waiting calls."""
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        await super().close()
