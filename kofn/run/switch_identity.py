"""The identity of a switch: kofn-switch takes BMv2's flags, and may have its name on the PATH.

A program tells its version with --version, and kofn-switch its name as well.  A running kofn-switch tells both in the
metadata of its answer to P4Runtime's Capabilities; BMv2 sends none.

    bmv2()                                          # of the PATH; None: there is none, RunError: it is another switch
    await answering("bmv2", "127.0.0.1:50051")      # of a running switch; RunError: it is not the target's
"""

import re
import shutil
import subprocess
from dataclasses import dataclass

import grpc
from finsy.proto import p4r, p4r_grpc

from kofn.run.errors import RunError
from kofn_switch.identity import NAME

BMV2 = "simple_switch_grpc"
"""The command that --target bmv2 starts."""

INSTEAD = "take its folder off the PATH (kofn-switch --make-names writes such names)"

ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class SwitchIdentity:
    """A switch's name and version."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def bmv2() -> SwitchIdentity | None:
    """Return the BMv2 of the PATH, None where nothing has its name; RunError where another switch has."""
    if (path := shutil.which(BMV2)) is None:
        return None
    said = _version_of(path)
    if re.fullmatch(r"\d+\.\d+\.\d+(-\w+)?", said) is None:
        raise RunError(f"{BMV2} must be BMv2, got {said or 'no answer'} (from {path} --version): {INSTEAD}")
    return SwitchIdentity("BMv2", said)


async def answering(target: str, address: str) -> SwitchIdentity:
    """Return the switch that answers at a P4Runtime address; RunError where it is not the target's."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = p4r_grpc.P4RuntimeStub(channel).Capabilities(p4r.CapabilitiesRequest(), timeout=ANSWER_S)
        try:
            told = dict(await call.initial_metadata())
            await call
        except grpc.aio.AioRpcError as error:
            raise RunError(
                f"the switch at {address} must answer P4Runtime's Capabilities, got {error.code().name}:"
                f" {error.details()}"
            ) from None
    ours = SwitchIdentity(NAME, str(told[NAME])) if NAME in told else None
    wanted, found = (NAME, ours) if target == "embedded" else ("BMv2", None if ours else bmv2())
    if found is None:
        raise RunError(
            f"the switch at {address} must be {wanted} (network.target is {target!r}), got"
            f" {ours or 'one that does not tell its name'}"
        )
    return found


def _version_of(path: str) -> str:
    """Return the first line of a program's output for --version; else the last line of its failure."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (result.stderr if result.returncode else result.stdout).strip().splitlines()
    return "" if not lines else lines[-1 if result.returncode else 0]
