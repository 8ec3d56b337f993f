"""A machine of its own for the scripts of others: its network and processes end with it, `sudo` keeps the PATH."""

import os
import re
from pathlib import Path

from kofn.switch.cli.names import make_names

PTF_OUTCOME = re.compile(r"^(\S+) \.\.\..*?\b(ok|FAIL|ERROR)$", re.MULTILINE | re.DOTALL)
"""A test of PTF's by name, and how it ended."""

OWN_MACHINE = ["unshare", "--net", "--pid", "--kill-child", "--mount-proc"]


def path_with(folder: Path, *, ours: bool) -> str:
    """The PATH on which BMv2's names are this switch's, or BMv2's.  The real sudo would look on a PATH of its own."""
    folder.mkdir(parents=True)
    if ours:
        make_names(folder)
    sudo = folder / "sudo"
    sudo.write_text('#!/bin/sh\n[ "$1" = -E ] && shift\nexec env "$@"\n')
    sudo.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
