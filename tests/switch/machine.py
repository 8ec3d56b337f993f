"""A separate machine for other projects' scripts: its network and processes end with it, and `sudo` keeps the PATH."""

import os
import re
from pathlib import Path

from kofn_switch.cli.names import make_names

PTF_OUTCOME = re.compile(r"^(\S+) \.\.\..*?\b(ok|FAIL|ERROR)$", re.MULTILINE | re.DOTALL)
"""A PTF test's name and outcome."""

OWN_MACHINE = ["unshare", "--net", "--pid", "--kill-child", "--mount-proc"]


def path_with(folder: Path, *, ours: bool) -> str:
    """Return a PATH on which BMv2's names are this switch's, or BMv2's; it includes a `sudo` that keeps the PATH."""
    folder.mkdir(parents=True)
    if ours:
        make_names(folder)
    sudo = folder / "sudo"
    sudo.write_text('#!/bin/sh\n[ "$1" = -E ] && shift\nexec env "$@"\n')
    sudo.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
