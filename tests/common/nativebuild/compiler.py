"""A C compiler that records its calls and may be held up."""

import shlex
from pathlib import Path

SCRIPT = """#!/bin/sh
case " $* " in
*" -c "*)
    echo "$*" >>{folder}/compiled
    until [ -e {folder}/go ]; do sleep 0.01; done ;;
*" -o "*) echo "$*" >>{folder}/linked ;;
esac
exec cc "$@"
"""


class NotingCompiler:
    """`command` is for CC; it compiles after go() was called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / "noting-cc"
        path.write_text(SCRIPT.format(folder=shlex.quote(str(folder))))
        path.chmod(0o755)
        self.command = shlex.quote(str(path))

    def go(self) -> None:
        (self._folder / "go").touch()

    @property
    def compiled(self) -> int:
        """Return the number of C files to compile."""
        return self._lines("compiled")

    @property
    def linked(self) -> int:
        """Return the number of libraries to link."""
        return self._lines("linked")

    def _lines(self, name: str) -> int:
        path = self._folder / name
        return path.read_text().count("\n") if path.exists() else 0
