"""The origin of a run: kofn's commit, versions, P4 program, machine, and command line."""

import contextlib
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

import msgspec

from kofn_common.places import folder_of

TREE = Path(__file__).resolve().parents[3]
UNKNOWN_COMMIT = "commit unknown"
PROGRAM = folder_of("kofn_p4src") / "build" / "kofn.json"


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of one run; texts are empty if unknown."""

    command: str = ""  # the command line, quoted for a shell
    kofn: str = ""  # version
    commit: str = ""  # commit of the source tree; a "+" at the end means uncommitted changes
    python: str = ""
    numpy: str = ""
    program_sha256: str = ""  # SHA-256 of p4src/build/kofn.json, which the switch loads
    switch: str = ""  # name and version, as the switch answered
    kernel: str = ""
    machine: str = ""  # architecture and processor
    cores: int = 0  # available to this process
    memory_bytes: int = 0

    @classmethod
    def here(cls) -> Self:
        """Return the provenance of this process, now."""
        return cls(
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            kofn=_version("kofn"),
            commit=_commit(),
            python=platform.python_version(),
            numpy=_version("numpy"),
            program_sha256=hashlib.sha256(PROGRAM.read_bytes()).hexdigest() if PROGRAM.exists() else "",
            kernel=f"{platform.system()} {platform.release()}",
            machine=", ".join(filter(None, (platform.machine(), _processor()))),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )

    @property
    def notes(self) -> list[str]:
        """A warning if the commit is unknown, as for a copy that pip has installed. Without a known version there is no
        warning, because then no provenance was recorded."""
        if self.commit or not self.kofn:
            return []
        return [f"kofn {self.kofn}, {UNKNOWN_COMMIT}: kofn was not run from a git checkout, or git did not answer"]

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values as text, without unknown values."""
        rows = (
            ("command", self.command),
            ("kofn", self.kofn and f"{self.kofn}, {f'commit {self.commit}' if self.commit else UNKNOWN_COMMIT}"),
            ("Python, NumPy", ", ".join(filter(None, (self.python, self.numpy)))),
            ("P4 program", self.program_sha256 and f"SHA-256 {self.program_sha256}"),
            ("switch", self.switch),
            ("machine", self.machine and f"{self.machine}; {self.cores} cores, {self.memory_bytes / 2**30:.1f} GiB"),
            ("kernel", self.kernel),
        )
        return [(what, value) for what, value in rows if value]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@functools.cache
def _commit() -> str:
    """Return the commit of the source tree; empty for an installed package."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if _git("rev-parse", "--show-toplevel") == str(TREE):
            return _git("rev-parse", "HEAD") + "+" * bool(_git("status", "--porcelain", "--untracked-files=no"))
    return ""


def _git(*arguments: str) -> str:
    argv = ["git", "-c", f"safe.directory={TREE}", "-C", str(TREE), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=5).stdout.strip()


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""
