"""How a command reaches a machine of a laboratory: OpenSSH with the user's own configuration, srun, or nothing."""

import shlex
import sys
from dataclasses import dataclass

from kofn.run.lab.checkout import CACHE, COMPLETE, Checkout
from kofn.run.lab.lab_file import HERE, LabMachine

SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=5"),
)
"""Without a terminal and without questions: a password that is needed, or an unknown host key, is an error."""

SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--unbuffered", "--quiet")
"""A step beside others in this allocation."""

ROOT = 'if [ "$(id -u)" = 0 ]; then as=; else as="sudo -n"; fi'
"""The beginning of a script in which `$as COMMAND` runs a command as root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedPorts:
    """TCP ports that ssh carries between the loopbacks of this machine and another one, under the same number."""

    there: tuple[int, ...] = ()
    """Servers on the other machine."""
    here: tuple[int, ...] = ()
    """Servers on this machine, or behind a port of this machine."""

    @property
    def flags(self) -> list[str]:
        flags = [("-L", port) for port in self.there] + [("-R", port) for port in self.here]
        return [part for flag, port in flags for part in (flag, f"127.0.0.1:{port}:127.0.0.1:{port}")]


NONE = ForwardedPorts()


def command(machine: LabMachine, script: str, ports: ForwardedPorts = NONE) -> list[str]:
    """Return the command line that runs a shell's script on a machine."""
    if machine.host == HERE:
        return ["sh", "-c", script]
    if machine.through == "srun":
        return [*SRUN, f"--nodelist={machine.host}", "sh", "-c", script]
    return [*SSH, *ports.flags, machine.host, f"exec sh -c {shlex.quote(script)}"]


def folder(machine: LabMachine, checkout: Checkout) -> str:
    """Return the folder of the checkout on a machine, for a shell."""
    return shlex.quote(str(checkout.root)) if machine.shares_checkout else f"{CACHE}/{checkout.version}"


def python(machine: LabMachine) -> str:
    """Return the Python of kofn's processes on a machine, for a shell in the checkout's folder."""
    if machine.python:
        return shlex.quote(machine.python)
    if machine.shares_checkout:
        return shlex.quote(sys.executable)
    return '$([ ! -e .venv/.ready-run ] || echo "$PWD/.venv/bin/python")'  # none if its set-up was interrupted


def boot(machine: LabMachine, checkout: Checkout, ports: ForwardedPorts) -> list[str]:
    """Return the command line of boot.py on a machine: as root, by sudo, or as root of a user namespace."""
    absent = f"{machine.host} has not this checkout of kofn ({checkout.version}): kofn lab setup puts it there"
    there, complete = ",".join(map(str, ports.there)), "." if machine.shares_checkout else COMPLETE
    script = f"""
cd {folder(machine, checkout)} 2>/dev/null && [ -e {complete} ] && python={python(machine)} && [ -x "$python" ] || {{
    echo {shlex.quote(absent)} >&2; exit 3; }}
PATH=$PATH:/usr/sbin:/sbin runs={CACHE}/runs state=
if [ "$(id -u)" = 0 ]; then as=
elif sudo -n true 2>/dev/null; then as="sudo -n"
elif unshare --user --net true 2>/dev/null; then
    as="python3 mininet/way.py {machine.address} {there or 0}" state=KOFN_STATE_DIR=$runs-state
else
    echo "kofn needs root, an account that may use sudo -n, or user namespaces (kernel.unprivileged_userns_clone)" >&2
    exit 3
fi
boot() {{ $as env PATH="$PATH" $state KOFN_LAB_PYTHON="$python" python3 mininet/boot.py --machine "$runs"; }}
boot; code=$?
[ $code -le 2 ] || boot </dev/null >/dev/null  # it was killed: the next one removes what it has left
exit $code
"""
    return command(machine, script, ports)
