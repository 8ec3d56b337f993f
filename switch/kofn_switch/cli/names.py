"""BMv2's command names in a folder for the PATH: the same switch and client under the names that scripts use."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

from kofn_switch.compiler.build import compile_runtime

START = """\
#!/bin/sh
'''exec' {python} -I "$0" "$@"
'''
import sys
from pathlib import Path
Path("/proc/self/comm").write_text(Path(sys.argv[0]).name)
"""
"""The beginning of each script. The shell starts Python with the script, because a first line with Python's path could
be too long, or the path could contain a space.

The script sets the process's name, by which other scripts end the switch.
"""

SWITCH = """\
from kofn_switch.__main__ import main
sys.exit(main([{flags}, *sys.argv[1:]]))
"""
FLAGS = '"--thrift-port", "9090", "--take-outgoing"'
"""BMv2's defaults: it serves its command line client, and takes in packets that other programs send out of its
interfaces."""

WITHOUT_P4RUNTIME = f'{FLAGS}, "--no-p4runtime"'
"""BMv2's simple_switch serves no P4Runtime, so that several switches need no ports for it."""

CLIENT = """\
from kofn_switch.commands.client import main
sys.exit(main())
"""
NAMES = {
    "simple_switch_grpc": SWITCH.format(flags=FLAGS),
    "simple_switch": SWITCH.format(flags=WITHOUT_P4RUNTIME),
    "simple_switch_CLI": CLIENT,
}


class MakeNames(argparse.Action):
    """An option that writes the commands of NAMES into the folder that is the option's value, and ends the process."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None
    ) -> NoReturn:
        """Print how to use the folder. Exit with 2 when it cannot be written."""
        folder = Path(values).absolute()
        try:
            make_names(folder)
        except OSError as error:
            parser.exit(2, f"switch: {option} {values}: {error.strerror}\n")
        print(f"export PATH={shlex.quote(str(folder))}:$PATH")
        parser.exit()


def make_names(folder: Path) -> None:
    """Write the commands for the running Python, and compile the runtime that all programs share.

    Raises OSError, CompilerMissing, CompileError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in NAMES.items():
        path = folder / name
        path.write_text(START.format(python=shlex.quote(sys.executable)) + script)
        path.chmod(0o755)
    compile_runtime()
