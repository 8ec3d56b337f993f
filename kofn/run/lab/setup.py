"""`kofn lab setup`: this checkout, and an environment for it, on each machine of a laboratory."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from kofn.report.table import make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.errors import RunError
from kofn.run.lab.checkout import CACHE, COMPLETE, Checkout
from kofn.run.lab.connection import ROOT, folder, python
from kofn.run.lab.lab_file import Lab, LabMachine
from kofn.run.lab.remote import Commands, FailedCommand, Said
from kofn.run.lab.wheels import TELL, PythonKind, Wheels

KEPT = 2
"""The checkouts that stay on a machine, those that were set up last; and each one in use."""

ANY_ROOT = f"{ROOT}; $as true 2>/dev/null || as="
"""The beginning of a script in which `$as COMMAND` runs a command as root, or as an account that may not be root."""

NO_INDEX = 4
"""The exit code of kofn/run/setup.sh where the package index cannot be reached."""

SETUP = f"""
PATH=$PATH:/usr/sbin:/sbin
exec 8<{COMPLETE}; flock --shared 8  # keeps the checkout while setup.sh runs
set -- PIP_RETRIES=1 PIP_DEFAULT_TIMEOUT=15  # wheels may come instead
[ ! -d .wheels ] || set -- PIP_NO_INDEX=1 "PIP_FIND_LINKS=$PWD/.wheels"
: >.setup.log
$as env "$@" kofn/run/setup.sh lab >>.setup.log 2>&1 </dev/null &  # goes on if the connection ends: dpkg must
tail -n +1 -s 0.1 -f --pid=$! .setup.log >&2
wait $! || exit $?
[ ! -d .wheels ] || $as rm -rf .wheels
[ ! -s .setup.log ] || echo made
"""
"""Runs setup.sh in a checkout's folder, with what it says in a file."""

EXAMPLES = """
\b
Examples:
  kofn lab setup lab.toml
  kofn lab setup lab.toml && kofn run --lab lab.toml

\b
Exit codes: 0 every machine is ready, 1 a machine is not, 2 the laboratory's file is wrong.
"""


@click.group()
def lab() -> None:
    """Prepare the machines of a laboratory (docs/howto/machines.md)."""


@lab.command("setup", epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
def setup_command(file: Path) -> None:
    """Put this checkout, as it is now, and an environment for it on each machine of the laboratory in FILE.

    The machine needs OpenSSH's server and Python 3.11. The checkout goes to ~/.cache/kofn/lab on the machine, and the
    environment into it, by the set-up script of `make run`; as root, this script also installs missing packages of
    Debian or Ubuntu. For a machine that reaches no package index, this machine fetches the Python packages and sends
    them. A machine for which FILE names its python gets no environment: only the checkout, and a check that this python
    has what kofn needs. The second time, nothing is left to do.
    """
    console = make_console()
    with ending("lab setup"):
        described, checkout = Lab.load(file), Checkout.own()
        say(console, f"this checkout is {checkout.version}")
        failed = [result for result in set_up(described, checkout, lambda words: say(console, words)) if result.error]
        for result in failed:
            say(make_console(stderr=True), f"kofn lab setup: {result.host}: {result.error}")
        sys.exit(1 if failed else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """The result of a machine's set-up."""

    host: str
    error: str = ""


def set_up(lab: Lab, checkout: Checkout, say: Said) -> Iterator[SetUp]:
    """Set up all machines at the same time; yield their results in the file's order."""
    commands = Commands()
    wheels = Wheels(checkout, commands)
    with ThreadPoolExecutor(len(lab.machines)) as pool:
        try:
            yield from pool.map(
                lambda machine: _one(MachineSetUp(machine, checkout, commands, wheels, say)), lab.machines
            )
        except BaseException:
            commands.end()
            raise


def _one(setup: "MachineSetUp") -> SetUp:
    try:
        setup.run()
    except RunError as error:
        return SetUp(host=setup.machine.host, error=str(error))
    return SetUp(host=setup.machine.host)


@dataclass(frozen=True, slots=True)
class MachineSetUp:
    """The set-up of one machine."""

    machine: LabMachine
    checkout: Checkout
    commands: Commands
    wheels: Wheels
    say_all: Said

    def say(self, words: str) -> None:
        if words:
            self.say_all(f"{self.machine.host}: {words}")

    def run(self) -> None:
        """Set the machine up, as far as it is not set up yet. RunError if that fails."""
        if self.machine.shares_checkout:
            self.say("uses this checkout")
            return
        self._copy()
        if self.machine.python:
            self._check_python()
        else:
            self._make_environment()

    def _copy(self) -> None:
        """Put the checkout on the machine, if it is not there. Remove older ones that no process uses."""
        place, version = folder(self.machine, self.checkout), self.checkout.version
        if self._on(f"[ ! -e {place}/{COMPLETE} ] || echo there").strip():
            self.say(f"has this checkout in {place}")
            archive = b""
        else:
            archive = self.checkout.archive()
        script = f"""
set -e
{ANY_ROOT}
mkdir -p {CACHE}; cd {CACHE}
exec 9>.lock; flock 9
rm -rf .new
if [ ! -e {version}/{COMPLETE} ]; then
    mkdir .new; tar -xzf - --no-same-owner -C .new; touch .new/{COMPLETE}
    $as rm -rf {version}; mv .new {version}
fi
touch {version}/{COMPLETE}
ls -dt -- */{COMPLETE} | tail -n +{KEPT + 1} | while read -r stamp; do
    flock --exclusive --nonblock "$stamp" $as rm -rf "${{stamp%/{COMPLETE}}}" || true  # boot.py or setup.sh runs there
done
"""
        self.commands.on(self.machine, script, archive)
        if archive:
            self.say(f"put this checkout ({len(archive) / 1e6:.1f} MB) into {place}")

    def _check_python(self) -> None:
        """Check the machine's own Python, and change nothing."""
        try:
            self._on(f"""
cd {folder(self.machine, self.checkout)}; code=0
kofn/run/setup.sh check || code=1
python={python(self.machine)}
if "$python" -c "import tomllib" 2>/dev/null; then "$python" kofn/run/lab/own_python.py || code=1
else echo "$python must be Python 3.11 or later, got $("$python" --version 2>&1)" >&2; code=1
fi
exit $code
""")
        except FailedCommand as error:
            raise RunError("\n".join(error.words)) from None
        self.say(f"{self.machine.python} has what kofn needs")

    def _make_environment(self) -> None:
        try:
            made = self._set_up()
        except FailedCommand as error:
            if error.code != NO_INDEX:
                raise
            self._send_wheels()
            made = self._set_up()
        self.say("has made its environment" if made else "has its environment")

    def _set_up(self) -> bool:
        """Run setup.sh; return whether there was something to do."""
        script = f"{ANY_ROOT}; cd {folder(self.machine, self.checkout)} || exit 1\n{SETUP}"
        return bool(self.commands.on(self.machine, script, said=self.say).strip())

    def _send_wheels(self) -> None:
        """Put the packages that setup.sh installs on the machine."""
        place = f"cd {folder(self.machine, self.checkout)}"
        kind = msgspec.json.decode(self._on(f"{place}; .venv/bin/python -", TELL.encode()), type=PythonKind)
        self.say("reaches no package index: this machine fetches its packages")
        archive, count = self.wheels.archive(kind)
        self.say(f"gets {count} packages ({len(archive) / 1e6:.0f} MB)")
        self._on(
            f"set -e; {place}; rm -rf .wheels.new; mkdir .wheels.new; tar -xf - -C .wheels.new; "
            "mv -T .wheels.new .wheels",
            archive,
        )

    def _on(self, script: str, data: bytes = b"") -> str:
        return self.commands.on(self.machine, script, data)
