"""`kofn lab setup`: this checkout, and an environment for it, on each machine of a laboratory."""

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import click

from kofn.report.table import make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.errors import RunError
from kofn.run.lab.checkout import CACHE, COMPLETE, Checkout
from kofn.run.lab.connection import ROOT, command, folder, python
from kofn.run.lab.lab_file import Lab, LabMachine

KEPT = 2
"""The checkouts that stay on a machine, the newest ones."""

EXAMPLES = """
\b
Examples:
  kofn lab setup lab.toml
  kofn lab setup lab.toml && kofn run --lab lab.toml

\b
Exit codes: 0 every machine is ready, 1 a machine is not, 2 the laboratory's file is wrong.
"""

Said = Callable[[str], None]


@click.group()
def lab() -> None:
    """Prepare the machines of a laboratory (docs/howto/machines.md)."""


@lab.command("setup", epilog=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
def setup_command(file: Path) -> None:
    """Put this checkout, as it is now, and an environment for it on each machine of the laboratory in FILE.

    The machine needs OpenSSH's server and Python 3.11. The checkout goes to ~/.cache/kofn/lab on the machine, and the
    environment into it, by the set-up script of `make run`; as root, this script also installs missing packages of
    Debian or Ubuntu. A machine for which FILE names its python gets no environment: only the checkout, and a check that
    this python has what kofn needs. The second time, nothing is left to do.
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
    with ThreadPoolExecutor(len(lab.machines)) as pool:
        yield from pool.map(lambda machine: _one(machine, checkout, say), lab.machines)


def _one(machine: LabMachine, checkout: Checkout, say: Said) -> SetUp:
    if machine.shares_checkout:
        say(f"{machine.host}: uses this checkout")
        return SetUp(host=machine.host)
    try:
        said = _copied(machine, checkout)
        say(f"{machine.host}: {said}")
        say(f"{machine.host}: {_environment(machine, checkout, say)}")
    except RunError as error:
        return SetUp(host=machine.host, error=str(error))
    return SetUp(host=machine.host)


def _copied(machine: LabMachine, checkout: Checkout) -> str:
    """Put the checkout on a machine that lacks it; return what was done."""
    place = folder(machine, checkout)
    if _run(machine, f"[ -e {place}/{COMPLETE} ] && echo there || true").strip() == "there":
        return f"has this checkout in {place}"
    archive = checkout.archive()
    script = f"""
set -e
rm -rf {place}; mkdir -p {place}
tar -xzf - -C {place}
touch {place}/{COMPLETE}
cd {CACHE}; ls -dt */{COMPLETE} | tail -n +{KEPT + 1} | while read -r old; do rm -rf "${{old%/{COMPLETE}}}"; done
"""
    _run(machine, script, archive)
    return f"put this checkout ({len(archive) / 1e6:.1f} MB) into {place}"


def _environment(machine: LabMachine, checkout: Checkout, say: Said) -> str:
    """Make the environment, or check the machine's own python; return what there is."""
    place = folder(machine, checkout)
    if machine.python:
        rooms = ":".join(f"$PWD/{room}" for room in ("common", "switch", "host", "controller"))
        imports = shlex.quote("import kofn_host, kofn_switch, kofn_controller")
        script = f"cd {place} && PYTHONPATH={rooms} {python(machine)} -c {imports}"
        _run(machine, script)
        return f"{machine.python} has what kofn needs"
    script = f"{ROOT}; cd {place} && if [ -e .venv/.ready-run ]; then echo there; else $as kofn/run/setup.sh >&2; fi"
    there = _run(machine, script, said=lambda line: say(f"{machine.host}: {line}")).strip() == "there"
    return "has its environment" if there else "has made its environment"


def _run(machine: LabMachine, script: str, data: bytes = b"", said: Said = lambda line: None) -> str:
    """Run a script on a machine with `data` as its input; return its output. `said` gets the lines of its errors.
    RunError with the last of these lines if the script fails."""
    words: list[str] = []

    def listen() -> None:
        for line in process.stderr or ():
            words.append(line.decode(errors="replace").strip())
            said(words[-1])

    argv = command(machine, script)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        listener = Thread(target=listen)
        listener.start()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its words tell why it has ended
            process.stdin.write(data)
            process.stdin.close()
        output = process.stdout.read().decode(errors="replace")
        listener.join()
    if process.returncode:
        raise RunError(words[-1] if words else f"exit code {process.returncode}")
    return output
