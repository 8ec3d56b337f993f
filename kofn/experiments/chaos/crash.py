"""Scenarios in which a whole run dies at once, in one of four ways, and is resumed at a checkpoint.

The run is a separate process. For a fault of the disk, the run's folder is on a separate file system.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kofn.run.errors import RunError
from kofn_common.config.schema import Config
from kofn_common.results.event_log import read_event_log
from kofn_common.results.folder import RunFolder, TrialFolder

CrashKind = Literal["kill", "power-cut", "damage", "disk-full"]

DISK_MB = 160

FS_IOC_SHUTDOWN, NO_FLUSH = 0x8004587D, 2
"""The request that stops an ext4 file system at once, and the flag that discards unwritten data."""

MARK = "KOFN_CRASH"
"""The environment variable by which the processes of a run are found."""

STEP_S = 0.02
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The death of all processes, once for each iteration in `at`, when a worker has finished this iteration."""

    kind: CrashKind
    at: Sequence[int]


def crashed(crash: Crash, source: Path, out: Path, arguments: Sequence[str], config: Config) -> list[str]:
    """Run `source` in `out`, with a crash and a resumption for each iteration in `crash.at`; return the faults.

    The output of the runs is in OUT.log.

    Raise RunError if the run ends before one of these iterations, or if the machine has no loop devices.
    """
    failures, log = list[str](), out.with_suffix(".log")
    with _disk(crash.kind) as disk:
        folder = out if disk is None else disk.mount / "run"
        run = ["run", str(source), "--out", str(folder), *arguments]
        for moment in crash.at:
            process = _start(run, log)
            whole = _until(moment, process, folder, disk, crash.kind)
            if crash.kind == "damage":
                _flip_a_bit(_trial(folder).checkpoints / f"{whole[-1]:08d}")
                whole = whole[:-1]
            wanted = max(whole, default=0)
            if wanted < moment - 2 * config.run.checkpoint_every and crash.kind != "disk-full":
                failures.append(f"the newest checkpoint at iteration {moment} was that of {wanted}")
            run = ["run", "--resume", str(folder)]
        _start(run, log).wait()
        resumed = [event.iteration for event in read_event_log(_trial(folder).events) if event.action == "resume"]
        if resumed[-1:] != [wanted]:
            failures.append(f"the run must resume at the checkpoint of iteration {wanted}, got {resumed}")
        if disk is not None:
            shutil.copytree(folder, out)
    return failures


def _until(
    moment: int, process: "subprocess.Popen[bytes]", folder: Path, disk: "_Disk | None", kind: CrashKind
) -> list[int]:
    """Wait until a worker has finished iteration `moment`, then let all processes die. Return the iterations of
    complete checkpoints, ascending."""
    deadline, full = time.monotonic() + TIMEOUT_S, False
    try:
        while (newest := _newest(folder)) < moment:
            if full and process.poll() == 1:
                break  # a line of metrics met the full disk: the run ends with a message, and can be resumed
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"the run ended, or stood still, before iteration {moment}")
            if kind == "disk-full" and disk is not None and not full and newest >= moment // 2:
                disk.fill()
                full = True
            time.sleep(STEP_S)
        if disk is not None and kind == "power-cut":
            disk.cut()
    finally:
        _kill(process)
    if disk is not None and kind == "power-cut":
        disk.remount()
    if disk is not None and full:
        disk.free()
    return [int(path.name) for path in sorted(_trial(folder).checkpoints.glob("[0-9]*")) if path.name.isdecimal()]


def _start(arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a run whose processes have MARK in their environment; the run's output is appended to `log`."""
    argv = [sys.executable, "-m", "kofn.cli.start", *arguments, "--quiet", "--no-web"]
    environment = os.environ | {MARK: str(os.getpid())}
    with log.open("ab") as output:
        return subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill every process of the run, then remove its network."""
    needle = f"{MARK}={os.getpid()}\0".encode()
    while pids := [int(path.name) for path in Path("/proc").glob("[0-9]*") if needle in _environment(path)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    subprocess.run([sys.executable, "-m", "kofn.cli.start", "clean"], capture_output=True, check=False)


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def _newest(folder: Path) -> int:
    """Return the newest iteration that a worker has finished; 0 while no such iteration can be read."""
    newest = 0
    with contextlib.suppress(OSError, ValueError):  # folders come and go; a line may be incomplete
        for path in folder.glob("*/worker-*.jsonl"):
            for line in path.read_bytes().splitlines()[-2:]:
                newest = max(newest, json.loads(line).get("iteration", 0))
    return newest


def _trial(folder: Path) -> TrialFolder:
    return RunFolder.open(folder).jobs[0].trials[0]


def _flip_a_bit(checkpoint: Path) -> None:
    """Damage one file of a checkpoint."""
    chosen = random.Random(checkpoint.name)
    path = chosen.choice(sorted(checkpoint.iterdir()))
    data = bytearray(path.read_bytes())
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    path.write_bytes(data)


@dataclass(slots=True)
class _Disk:
    """An ext4 file system in a file, mounted at `mount`."""

    image: Path
    mount: Path

    def cut(self) -> None:
        """Stop the file system as a power cut does: unwritten data is lost."""
        with self._opened() as opened:
            fcntl.ioctl(opened, FS_IOC_SHUTDOWN, struct.pack("I", NO_FLUSH))

    def remount(self) -> None:
        """Mount a copy of the file system, because another process may still hold the stopped file system."""
        _command("umount", str(self.mount))
        self.image = Path(shutil.copyfile(self.image, f"{self.image}-again"))
        _command("mount", "-o", "loop", str(self.image), str(self.mount))

    def fill(self) -> None:
        """Leave space for lines of metrics, but not for a checkpoint."""
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(self.mount).free - (2 << 20)))

    def free(self) -> None:
        self._ballast.unlink()

    @property
    def _ballast(self) -> Path:
        return self.mount / "ballast"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        opened = os.open(self.mount, os.O_RDONLY)
        try:
            yield opened
        finally:
            os.close(opened)


@contextlib.contextmanager
def _disk(kind: CrashKind) -> Iterator[_Disk | None]:
    """Yield a separate file system for a fault of the disk, else None."""
    if kind not in ("power-cut", "disk-full"):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kofn-disk-") as name:
        disk = _Disk(Path(name) / "image", Path(name) / "mount")
        disk.mount.mkdir()
        with disk.image.open("wb") as file:
            file.truncate(DISK_MB << 20)
        _command("mkfs.ext4", "-q", "-m", "0", str(disk.image))
        _command("mount", "-o", "loop", str(disk.image), str(disk.mount))
        try:
            yield disk
        finally:
            _command("umount", str(disk.mount))


def _command(*argv: str) -> None:
    """Run a command. If the command fails, raise RunError with its message."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RunError(f"{argv[0]} must be installed (e2fsprogs, mount) for a crash of the disk") from None
    if done.returncode:
        raise RunError(f"{' '.join(argv)}: {done.stderr.strip()}")
