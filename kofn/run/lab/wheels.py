"""Packages for machines that reach no package index: wheels that this machine fetches for another machine's Python."""

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import msgspec

from kofn.run.errors import RunError
from kofn.run.lab.checkout import Checkout
from kofn.run.lab.remote import Commands, FailedCommand

OLDEST_GLIBC = 17
"""The glibc, as N of 2.N, of the oldest wheels that packages still have."""

UNREACHED = "Retry(total=0"
"""The words of pip where there is no package index."""

TELL = """
import json, platform, sys
libc, version = platform.libc_ver()
print(json.dumps(dict(python="%d.%d" % sys.version_info[:2], machine=platform.machine(), libc=libc, version=version)))
"""
"""Prints a Python's PythonKind."""


class PythonKind(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a Python that decide which wheels it takes."""

    python: str  # 3.11
    machine: str  # x86_64
    libc: str
    version: str  # of the libc

    @property
    def platforms(self) -> Iterator[str]:
        """The platforms of wheels, the newest first. RunError if the C library is not glibc."""
        if self.libc != "glibc":
            raise RunError(f"the C library must be glibc for packages without an index, got {self.libc or 'another'}")
        newest = int(self.version.split(".")[1])
        yield from (f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, OLDEST_GLIBC - 1, -1))
        yield f"manylinux2014_{self.machine}"


class Wheels:
    """The wheels that kofn/run/setup.sh installs, fetched once for each kind of Python.

    pip decides by this machine's Python whether a requirement with a condition ("python_version < ...") counts. From
    Python 3.11 on, no requirement of kofn's packages depends on that.
    """

    def __init__(self, checkout: Checkout, commands: Commands) -> None:
        self._checkout, self._commands = checkout, commands
        self._fetched: dict[PythonKind, tuple[bytes, int]] = {}
        self._lock = Lock()

    def archive(self, kind: PythonKind) -> tuple[bytes, int]:
        """Return a tar archive of the wheels, and their number. RunError if pip could not fetch them."""
        with self._lock:
            if kind not in self._fetched:
                with TemporaryDirectory(prefix="kofn-wheels-") as folder:
                    self._fetched[kind] = self._fetch(kind, Path(folder))
            return self._fetched[kind]

    def _fetch(self, kind: PythonKind, folder: Path) -> tuple[bytes, int]:
        source, wheels = folder / "checkout", folder / "wheels"
        self._checkout.copy_to(source)  # pip writes into the folders of the distributions
        try:
            self._commands.here(list(self._download(kind, source, wheels)))
        except FailedCommand as error:
            if any(UNREACHED in line for line in error.words):
                raise RunError("neither it nor this machine reaches a package index") from None
            raise RunError(
                f"it reaches no package index, and pip here could not fetch packages for it: {error}"
            ) from None
        packed, found = io.BytesIO(), sorted(wheels.glob("*.whl"))  # beside archives of the checkout's distributions
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for wheel in found:
                archive.add(wheel, wheel.name)
        return packed.getvalue(), len(found)

    def _download(self, kind: PythonKind, source: Path, wheels: Path) -> Iterator[str]:
        """Yield the command line that fetches what setup.sh installs; the checkout's distributions stay sources."""
        yield from ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(source))
        yield from (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input")
        yield from ("--no-build-isolation", "--only-binary", ":all:", "--dest", str(wheels))
        yield from ("--implementation", "cp", "--python-version", kind.python)
        for platform in kind.platforms:
            yield from ("--platform", platform)
        yield from ("-c", "constraints.txt", "setuptools", "-r", "requirements.txt")
