"""Boot the network and run processes in it, at the command of JSON lines on stdin; see README.md in this folder.

    boot.py --topology FILE | --hosts N [--mbps B] [--racks R [--uplink-mbps U]]
                                                       boot, print {"event": "ready", ...}, then obey
    boot.py ... --write-topology OUT                   only check the options, and write their topology.json
    boot.py ... --check-machine                        only check whether this machine has room for the network
    boot.py --machine CACHE                            make a part of a network, at the command of another machine
    boot.py --clean                                    remove the processes and the network that a dead boot.py has left

boot.py knows nothing of training, switches or controllers; it starts any processes. When stdin ends, or on SIGTERM,
SIGINT and SIGHUP, it ends its processes, removes the network, prints {"event": "stopped"} and exits with 0. After an
impossible command it prints {"event": "error", "message": ...}, removes the network, and exits with 2.
"""

import argparse
import sys
from pathlib import Path

import drivers
import records
import topology
from errors import NetworkError
from machine import serve_runner
from network import Network, NetworkPlan, check_machine, check_plan
from parts import NetworkPart
from processes import Children
from server import BootServer, Stop, emit, watch_signals


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Boot kofn's network; JSON lines on stdin and stdout.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--topology", type=Path, help="a topology.json")
    source.add_argument("--hosts", type=int, help="number of hosts of a star instead")
    source.add_argument("--machine", type=Path, metavar="CACHE", help="serve another machine's `kofn run --lab`")
    source.add_argument("--clean", action="store_true", help="end and remove what dead networks have left, then exit")
    parser.add_argument("--mbps", type=float, help="with --hosts: the rate of every link (default: not shaped)")
    parser.add_argument("--racks", type=int, default=1, help="with --hosts: number of leaf switches of a tree")
    parser.add_argument("--uplink-mbps", type=float, help="with --racks: the rate of every leaf's link to the root")
    parser.add_argument("--write-topology", type=Path, metavar="OUT", help="only check, and write the topology as JSON")
    parser.add_argument("--check-machine", action="store_true", help="only check this machine for it")
    parser.add_argument("--driver", choices=drivers.NAMES, default="auto")
    parser.add_argument("--management", default="172.30.255.0/24", help="network of gRPC, beside the data network")
    parser.add_argument("--mtu", type=int, default=9000, help="of the data links")
    parser.add_argument("--gso", action="store_true", help="let coalesced UDP datagrams cross the data links")
    parser.add_argument("--log-dir", type=Path, help="for the logs of processes that are started without one")
    return parser.parse_args()


def plan(options: argparse.Namespace) -> NetworkPlan:
    """Return the checked plan of the command line."""
    return NetworkPlan.checked(
        wanted(options),
        driver=options.driver,
        management=options.management,
        mtu=options.mtu,
        coalesced=options.gso,
        part=NetworkPart(),
    )


def wanted(options: argparse.Namespace) -> topology.Topology:
    """Return the topology that the command line describes."""
    if options.topology is None and options.racks == 1:
        return topology.star(options.hosts, options.mbps)
    if options.topology is None:
        return topology.tree(options.hosts, options.racks, options.mbps, options.uplink_mbps)
    if options.mbps is not None or options.uplink_mbps is not None:
        raise NetworkError(
            "--mbps and --uplink-mbps must come with --hosts: in a topology.json every link has its rate"
        )
    return topology.load(options.topology)


def run(options: argparse.Namespace) -> None:
    signals = watch_signals()
    with Network(plan(options)) as network:
        server = BootServer()
        server.take(network, Children(network.record, options.log_dir))
        try:
            emit("ready", **network.describe())
            server.serve(signals)
        except Stop:
            return
        finally:
            server.end()


def clean() -> None:
    """Remove what dead networks have left. Raise NetworkError if a network runs, which stays."""
    records.refuse_living()


def main() -> int:
    """Return the exit code: 0 if the command was carried out, 2 if it was not possible."""
    options = arguments()
    try:
        if options.clean:
            clean()
        elif options.write_topology is not None:
            asked = plan(options)
            check_plan(asked)
            options.write_topology.write_text(asked.topology.to_json())
        elif options.check_machine:
            check_machine(plan(options))
        elif options.machine is not None:
            serve_runner(options.machine)
        else:
            run(options)
            emit("stopped")
    except (NetworkError, OSError) as error:
        if options.clean or options.write_topology is not None or options.check_machine:
            print(f"boot.py: {error}", file=sys.stderr)
        else:
            emit("error", message=str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
