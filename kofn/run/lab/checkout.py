"""This checkout's files for the machines of a laboratory, and their version."""

import hashlib
import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from kofn_common.config.errors import ConfigError
from kofn_common.places import folder_of

UNNEEDED = ("tests/", "docs/images/", "bench/")
"""Folders of a checkout without files that a process needs: examples read the documentation as a text."""

CACHE = "~/.cache/kofn/lab"
"""The folder of a machine with the checkouts, their environments, and the files of runs."""

COMPLETE = ".complete"
"""The file in a checkout on a machine that says that all of the checkout is there."""


@dataclass(frozen=True)
class Checkout:
    """The files of a checkout as they are now, without those that git ignores."""

    root: Path

    @classmethod
    def own(cls) -> Self:
        """Return the checkout that this process runs from. ConfigError if there is none."""
        root = folder_of("kofn").parent
        if not (root / ".git").exists():
            raise ConfigError(f"a laboratory needs a checkout of kofn, got an installed package in {root}")
        return cls(root)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The paths of the files, relative to the root."""
        names = self._git("--cached", "--others", "--exclude-standard")
        needed = (name for name in sorted(names) if not name.startswith(UNNEEDED))
        return tuple(name for name in needed if (self.root / name).is_file())

    def _git(self, *words: str) -> list[str]:
        """Return the names that `git ls-files` prints."""
        argv = ["git", "-c", f"safe.directory={self.root}", "-C", str(self.root), "ls-files", "-z", *words]
        try:
            listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"git must list the files of {self.root}: {error}") from error
        return [name for name in listed.split("\0") if name]

    @cached_property
    def version(self) -> str:
        """A checksum of the files: two checkouts with the same files have the same version."""
        total = hashlib.sha256()
        for name in self.files:
            total.update(name.encode() + b"\0" + hashlib.sha256((self.root / name).read_bytes()).digest())
        return total.hexdigest()[:12]

    def covers(self, path: Path) -> bool:
        """Return whether a file, or all files of a folder, are among the checkout's files."""
        if not path.is_relative_to(self.root):
            return False
        name = path.relative_to(self.root)
        return str(name) in self.files if path.is_file() else not self._git("--others", "--exclude-standard", str(name))

    def copy_to(self, folder: Path) -> None:
        """Copy the files to a folder that does not exist yet."""
        for name in self.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / name, folder / name)

    def archive(self) -> bytes:
        """Return the files as a compressed tar archive."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name in self.files:
                archive.add(self.root / name, name, recursive=False)
        return packed.getvalue()
