"""The identity of a switch: kofn-switch takes BMv2's flags, and may have its name on the PATH.

With --version a program prints its version, and kofn-switch prints its name as well.

    bmv2()       # the BMv2 of the PATH; None if there is no switch, OtherSwitch if it is another switch
"""

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass

from kofn_switch.errors import OtherSwitch

NAME = "kofn-switch"
"""The switch's own name, whatever its command is called."""

BMV2 = "simple_switch_grpc"
"""BMv2's command."""

ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class SwitchIdentity:
    """A switch's name and version."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@functools.cache
def version() -> str:
    """Return the version; the lookup takes a while."""
    from importlib import metadata  # noqa: PLC0415

    return metadata.version(NAME)


def bmv2() -> SwitchIdentity | None:
    """Return the BMv2 of the PATH; None if no program has its name. Raise OtherSwitch if another switch has it."""
    if (path := shutil.which(BMV2)) is None:
        return None
    said = _version_of(path)
    if re.fullmatch(r"\d+\.\d+\.\d+(-\w+)?", said) is None:
        raise OtherSwitch(
            f"{BMV2} must be BMv2, got {said or 'no answer'} (from {path} --version):"
            " take its folder off the PATH (kofn-switch --make-names writes such names)"
        )
    return SwitchIdentity("BMv2", said)


def _version_of(path: str) -> str:
    """Return the first line that a program prints for --version, or the last line of its error."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (result.stderr if result.returncode else result.stdout).strip().splitlines()
    return "" if not lines else lines[-1 if result.returncode else 0]
