"""`kofn switch`, `kofn controller`, `kofn worker`: one process of a job on its own machine; `kofn link`: its link."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

from kofn.run import accelerators
from kofn.run.commands import ENVIRONMENT, Commands
from kofn.run.ending import ending
from kofn.run.machine import (
    check_mtu,
    check_ports,
    configure,
    data_address,
    make_leaf_ports,
    make_ports,
    make_tunnel,
    make_uplink,
    own_address,
)
from kofn.run.options import FiniteRange
from kofn.run.state import state_path
from kofn.run.topology import wanted_topology
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.rpc.address import checked_address
from kofn_common.wire.sizes import RACK_WORKERS_MAX, RACKS_MAX, WORKERS_MAX

SWITCH_EXAMPLES = """
\b
Examples:
  kofn switch --tunnels 4                           four workers, anywhere in an IP network
  kofn switch --interface eth1 --interface eth2     a cable to each of two workers
  kofn switch --leaves 2 --p4runtime 192.0.2.1:50051
                                                    the root of a tree of two racks
  kofn switch --rack 0 --tunnels 4 --root 192.0.2.1 --p4runtime 192.0.2.2:50051
                                                    the leaf of the first rack, with four workers

\b
Exit codes: 0 ended by a signal, 1 an interface is not available, 2 the command line is wrong.
"""

CONTROLLER_EXAMPLES = """
\b
Examples:
  kofn controller job.toml --certs certs
  kofn controller job.toml --listen 192.0.2.1:50052 --listen 127.0.0.1:50052

\b
Exit codes: 0 ended by a signal, 2 the controller cannot start.
"""

WORKER_EXAMPLES = """
\b
Examples:
  kofn worker job.toml --rank 0 --switch 192.0.2.1 --controller 192.0.2.1:50052 --certs certs
  kofn worker job.toml --rank 0 --interface eth1 --controller 192.0.2.1:50052

\b
Exit codes: 0 trained to the end, 1 the worker cannot take part, 2 the configuration is wrong.
"""

LINK_EXAMPLES = """
\b
Examples:
  kofn link job.toml --rank 0 --switch 192.0.2.1
  kofn link job.toml --rank 0 --interface eth1

\b
Exit codes: 0 the interface is made, 1 it cannot be made, 2 the configuration is wrong.
"""

_config = click.argument("path", metavar="JOB.toml", type=click.Path(path_type=Path))
_certs = click.option(
    "--certs", type=click.Path(path_type=Path), help="The folder of `kofn certs`; without it: plaintext."
)
_rank = click.option(
    "--rank", type=click.IntRange(0, WORKERS_MAX - 1), required=True, help="This worker's rank, from 0."
)
_switch = click.option(
    "--switch", "host", metavar="HOST", help="The machine of the switch, or of the rack's leaf, in an IP network."
)
_interface = click.option("--interface", metavar="NAME", help="The interface of a cable to the switch.")


@click.command(epilog=SWITCH_EXAMPLES)
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="NAME",
    help="The interface to worker 0, then to worker 1, and so on. The last interface of a leaf leads to the root; the"
    " interfaces of a root lead to the leaves.",
)
@click.option("--tunnels", type=click.IntRange(1, RACK_WORKERS_MAX), metavar="N", help="A tunnel to each of N workers.")
@click.option(
    "--leaves", type=click.IntRange(2, RACKS_MAX), metavar="R", help="For a root: a tunnel to each of R leaves."
)
@click.option("--rack", type=click.IntRange(0, RACKS_MAX - 1), help="For a leaf: its rack.")
@click.option("--root", metavar="HOST", help="For a leaf with --tunnels: the root's machine.")
@click.option(
    "--p4runtime",
    type=checked_address,
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="The address of the P4Runtime server.",
)
@click.option(
    "--certs", type=click.Path(path_type=Path), help="The folder of `kofn certs --p4runtime`; without it: plaintext."
)
def switch(
    interfaces: tuple[str, ...],
    tunnels: int | None,
    leaves: int | None,
    rack: int | None,
    root: str | None,
    p4runtime: str,
    certs: Path | None,
) -> None:
    """Run a switch of a job whose workers are on other machines. Needs root.

    A worker reaches the switch by a cable (--interface), or through any IP network (--tunnels): VXLAN over UDP port
    19277, which firewalls must let pass. In a tree, leaves (--root) reach the root (--leaves) in the same way. The
    controller brings the program, so switches, controller and workers start in any order. Without --certs every process
    that reaches the switch's P4Runtime can program the switch: then use an address of this machine alone, or a network
    that you trust.
    """
    if sum((bool(interfaces), tunnels is not None, leaves is not None)) != 1:
        raise click.UsageError(
            "exactly one of --interface NAME (for each neighbour), --tunnels N, --leaves R must be given"
        )
    if (root is None) == (rack is not None and tunnels is not None):
        raise click.UsageError("--root HOST must be given with --rack and --tunnels, and only then")
    if rack is not None and leaves is not None:
        raise click.UsageError("--leaves is for a root and --rack for a leaf: both must not be given")
    with ending("switch"):
        names = list(interfaces)
        if names:
            check_ports(len(names))
        names += make_ports(tunnels, rack or 0) if tunnels else make_leaf_ports(leaves) if leaves else []
        names += [make_uplink(root, rack)] if root is not None and rack is not None else []
        ports = [part for port, name in enumerate(names, 1) for part in ("-i", f"{port}@{name}")]
        device = ["--device-id", str(0 if rack is None else rack + 1)]
        target = ["--grpc-server-addr", p4runtime, "--cpu-port", "255", *_tls(certs)]
        _become([sys.executable, "-m", "kofn_switch", "--no-p4", *ports, *device, "--", *target])


def _tls(folder: Path | None) -> list[str]:
    """Return the P4Runtime server's options for mutual TLS."""
    if folder is None:
        return []
    files = {"cert": "server.pem", "key": "server.key", "cacert": "ca.pem"}
    named = [part for flag, name in files.items() for part in (f"--grpc-server-{flag}", str(folder / name))]
    return ["--grpc-server-ssl", "--grpc-server-with-client-auth", *named]


@click.command(epilog=CONTROLLER_EXAMPLES)
@_config
@click.option(
    "--p4runtime",
    type=checked_address,
    multiple=True,
    default=["127.0.0.1:50051"],
    show_default=True,
    metavar="HOST:PORT",
    help="The switch's P4Runtime server; repeat it for a tree: the root's, then each leaf's.",
)
@click.option(
    "--listen",
    type=checked_address,
    multiple=True,
    default=["0.0.0.0:50052"],
    show_default=True,
    metavar="HOST:PORT",
    help="The address for workers; may be repeated.",
)
@click.option("--decisions", type=click.Path(path_type=Path), help="Append decisions and samples, as JSON lines.")
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest wait for the switch.",
)
@click.option(
    "--p4runtime-certs", type=click.Path(path_type=Path), help="The folder of `kofn certs --p4runtime`; else plaintext."
)
@_certs
def controller(
    path: Path,
    p4runtime: tuple[str, ...],
    listen: tuple[str, ...],
    decisions: Path | None,
    wait: float,
    p4runtime_certs: Path | None,
    certs: Path | None,
) -> None:
    """Run the controller of a job whose workers are on other machines; policy.objective chooses k."""
    with ending("controller"):
        config = Config.load(path)
        topology = _written(f"job-{config.job.id}.topology", wanted_topology(config, path, hosts=config.job.workers))
        _become(
            [
                *(sys.executable, "-m", "kofn_controller", "--config", str(path), "--topology", str(topology)),
                *(part for address in p4runtime for part in ("--p4runtime", address)),
                *("--wait", str(wait)),
                *(part for address in listen for part in ("--listen", address)),
                *(() if decisions is None else ("--decisions", str(decisions))),
                *(() if certs is None else ("--certs", str(certs))),
                *(() if p4runtime_certs is None else ("--p4runtime-certs", str(p4runtime_certs))),
            ]
        )


@click.command(epilog=LINK_EXAMPLES)
@_config
@_rank
@_switch
@_interface
def link(path: Path, rank: int, host: str | None, interface: str | None) -> None:
    """Make a worker's interface to the switch, for a worker that torchrun starts. Needs root.

    The interface stays when the command has ended.
    """
    with ending("link"):
        _linked(Config.load(path), path, rank, host, interface)


@click.command(epilog=WORKER_EXAMPLES)
@_config
@_rank
@click.option(
    "--controller", "peer", type=checked_address, required=True, metavar="HOST:PORT", help="The controller's address."
)
@_switch
@_interface
@click.option("--address", help="This machine's address for other workers.  [default: the one towards the controller]")
@click.option(
    "--metrics",
    type=click.Path(path_type=Path),
    help="File for JSON lines; the ledger is written beside it.  [default: worker-RANK.jsonl]",
)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    help="Folder of the job's checkpoints (run.checkpoint_every), which all workers share; resume at the newest"
    " checkpoint.",
)
@_certs
def worker(
    path: Path,
    rank: int,
    peer: str,
    host: str | None,
    interface: str | None,
    address: str | None,
    metrics: Path | None,
    checkpoints: Path | None,
    certs: Path | None,
) -> None:
    """Run a worker of a job on this machine. Needs root.

    The worker trains the configuration's workload, or its torch.script by torchrun. If the worker is restarted with the
    same arguments on the same machine, it continues. It ends if no controller answers for a minute.
    """
    with ending("worker"):
        config, own = Config.load(path), address or own_address(peer)
        lines = (metrics or Path(f"worker-{rank}.jsonl")).resolve()
        if checkpoints is not None and not config.run.checkpoint_every:
            raise ConfigError("run.checkpoint_every must be 1 or more with --checkpoints, got 0")
        commands = Commands(network=config.network, topology=path, certificates=certs, controller_address=peer)
        link = _linked(config, path, rank, host, interface)
        _train(commands, config, path.resolve(), rank, own, link, lines, checkpoints)


def _linked(config: Config, path: Path, rank: int, host: str | None, interface: str | None) -> str:
    """Prepare the interface through which this worker reaches the switch; return its name."""
    if (host is None) == (interface is None):
        raise click.UsageError("exactly one of --switch HOST, --interface NAME must be given")
    if rank >= config.job.workers:
        raise ConfigError(f"--rank must be 0 to {config.job.workers - 1} (job.workers - 1), got {rank}")
    name = interface or make_tunnel(host or "", rank)
    configure(name, data_address(config, path, rank))
    click.echo(f"worker {rank}: {name}, MTU {check_mtu(name, config.job)}", err=True)
    return name


def _train(
    commands: Commands,
    config: Config,
    path: Path,
    rank: int,
    own: str,
    link: str,
    metrics: Path,
    checkpoints: Path | None,
) -> NoReturn:
    """Replace this process by the process that `kofn run` would start for the worker."""
    folder = None if checkpoints is None else str(checkpoints.resolve())
    if config.torch.script is None:
        more = [] if folder is None else ["--checkpoints", folder]
        _become(commands.worker(path, rank, own, metrics, ["--interface", link, *more]))
    if config.torch.group != "worker":
        raise ConfigError(f"torch.group must be 'worker' on several machines, got {config.torch.group!r}")
    environment = commands.torch_environment(path, rank, link, own, metrics) | {"KOFN_INTERFACE": link}
    accelerators.check(config.torch)
    environment |= accelerators.visible(config.torch, rank)
    environment |= {} if folder is None else {"KOFN_CHECKPOINTS": folder}
    _become(commands.torchrun(config.torch, rank, config.job.workers, "127.0.0.1"), environment)


def _become(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by another process. The other process gets this command's signals, and its exit code is the
    command's exit code."""
    sys.stdout.flush()
    os.execve(argv[0], list(argv), {**os.environ, **ENVIRONMENT, **(environment or {})})


def _written(name: str, text: str) -> Path:
    """Write a file for the process that replaces this process. The name must not end in .json, because the names of
    networks' records end in .json."""
    path = state_path().with_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
