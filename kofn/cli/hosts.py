"""`kofn hosts`, `kofn exec` and `kofn shell`: the hosts of the running network, and any command inside a host."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click
import msgspec

from kofn.report.table import PlainTable, make_console
from kofn.run.lab.connection import ROOT
from kofn.run.network_record import NetworkRecord, RecordedHost, running_network
from kofn_common.config.suggestion import did_you_mean

EXIT_REFUSED = 2
EXIT_NO_NETWORK = 3
EXIT_NO_COMMAND = 127
"""The exit code of a shell for an unknown command."""

HOSTS_EXAMPLES = """
\b
Examples:
  kofn hosts
  kofn hosts --json | jq -r '.h1.management'

\b
Exit codes: 0 shown, 2 the network is not made yet, 3 no network runs.
"""

EXEC_EXAMPLES = """
\b
Examples:
  kofn exec h1 ip addr
  kofn exec h1 tcpdump -i h1-eth0 -c 10 udp port 19278
  kofn exec h2 ping -c 3 10.0.0.1
  kofn exec h1 tcpdump -i any -w - > h1.pcap

\b
Exit codes: the command's own; 2 there is no such host or no right to enter it, 3 no network runs, 127 no such command.
"""

SHELL_EXAMPLES = """
\b
Examples:
  kofn shell h1
  echo 'ip route' | kofn shell h1

\b
Exit codes: those of kofn exec.
"""


@click.command(epilog=HOSTS_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def hosts(*, as_json: bool) -> None:
    """Show the hosts of the current run: addresses, and the switch's interface to each host.

    Worker 0 runs in the first host, worker 1 in the second, and so on; parameter servers run in the last hosts.
    """
    found = _network("hosts").hosts
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    headings = ["host", "data", "MAC", "management", "port", "switch's interface", "Mbit/s"]
    make_console().print(PlainTable(headings, [_row(name, host) for name, host in found.items()]))


@click.command("exec", epilog=EXEC_EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("host")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND [ARG]...")
def command(host: str, argv: Sequence[str]) -> None:
    """Run a command inside a host of the current run.

    The command has the host's network, and everything else of this machine: files, users, processes. Input, output,
    signals and exit code of `kofn exec` are the command's.
    """
    _enter("exec", host, argv)


@click.command(epilog=SHELL_EXAMPLES)
@click.argument("host")
def shell(host: str) -> None:
    """Open a shell inside a host of the current run; its prompt names the host.

    When the run ends the shell stays open, without the network.
    """
    if (found := _network("shell").hosts.get(host)) is not None and found.machine:
        _enter("shell", host, ["bash", "--norc"], {"PS1": f"[{host}] \\u@\\h:\\w\\$ "})
    if shutil.which("bash") is None:
        _enter("shell", host, ["sh"], {"PS1": f"{host}# "})
    _enter("shell", host, ["bash", "--rcfile", _startup(host)])


def _network(name: str) -> NetworkRecord:
    network = running_network()
    if network is None:
        _end(name, "no network runs: `make run` or `kofn run` starts a network", EXIT_NO_NETWORK)
    if not network.hosts:
        _end(name, f"the network of pid {network.pid} is not made yet: try again in a second", EXIT_REFUSED)
    return network


def _enter(name: str, host: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by a command inside the host."""
    found = _network(name).hosts
    if host not in found:
        _end(name, f"HOST must be among {', '.join(found)}, got {host!r}{did_you_mean(host, found)}", EXIT_REFUSED)
    if found[host].machine:
        _enter_elsewhere(found[host], argv, {**(environment or {}), "KOFN_HOST": host})
    if os.geteuid() != 0:
        _end(name, f"entering a host needs root: sudo .venv/bin/kofn {name} {host} ...", EXIT_REFUSED)
    for needed in ("nsenter", argv[0]):
        if shutil.which(needed) is None:
            _end(name, f"no command {needed!r} is on the PATH", EXIT_NO_COMMAND)
    os.environ.update(environment or {}, KOFN_HOST=host)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE; the command must not inherit this
    os.execvp("nsenter", ["nsenter", f"--net={found[host].namespace}", "--", *argv])


def _enter_elsewhere(host: RecordedHost, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by ssh with a command inside a host of another machine."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    inside = shlex.join(["nsenter", f"--net={host.namespace}", "--", "env", *settings, *argv])
    terminal = "-t" if sys.stdin.isatty() else "-T"
    os.execvp("ssh", ["ssh", terminal, host.machine, f"{ROOT}; exec $as {inside}"])


def _end(name: str, message: str, code: int) -> NoReturn:
    click.echo(f"kofn {name}: {message}", err=True)
    sys.exit(code)


def _startup(host: str) -> str:
    """Return the path of a startup file for bash. The file reads ~/.bashrc, and then puts the host's name into the
    prompt. The file is in memory, and ends with the shell."""
    descriptor = os.memfd_create("kofn-shell", 0)
    os.write(descriptor, f'[ -f ~/.bashrc ] && . ~/.bashrc\nPS1="[{host}] ${{PS1}}"\n'.encode())
    return f"/proc/self/fd/{descriptor}"


def _row(name: str, host: RecordedHost) -> list[str]:
    rate = "-" if host.mbps is None else f"{host.mbps:g}"
    return [name, host.ip, host.mac, host.management, str(host.port), host.interface, rate]
