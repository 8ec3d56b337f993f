"""Boot the network and run processes in it, at the command of JSON lines on stdin; see README.md in this folder.

    boot.py --topology FILE | --hosts N [--mbps B] [--racks R [--uplink-mbps U]]
                                                       boot, print {"event": "ready", ...}, then obey
    boot.py ... --write-topology OUT                   only check the options, and write their topology.json
    boot.py ... --check-machine                        only check whether this machine has room for the network
    boot.py --clean                                    remove the processes and the network that a dead boot.py has left

boot.py knows nothing of training, switches or controllers; it starts any processes. When stdin ends, or on SIGTERM,
SIGINT and SIGHUP, it ends its processes, removes the network, prints {"event": "stopped"} and exits with 0. After an
impossible command it prints {"event": "error", "message": ...}, removes the network, and exits with 2.
"""

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO, Any

import drivers
import records
import topology
from errors import NetworkError
from links import check_rate
from network import Network, NetworkPlan, check_machine, check_plan
from processes import Children

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CHECK = "check"
"""The id of the process that runs the checks."""

COMMANDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "start": ({"id": str, "node": str, "argv": list}, {"env": dict, "log": str, "cwd": str}),
    "signal": ({"id": str, "signal": str}, {}),
    "check": ({}, {}),
    "shape": ({"host": str, "mbps": (int, float, type(None))}, {}),
    "stop": ({}, {}),
}
"""The commands on stdin: needed and optional fields with their types."""


class Stop(Exception):  # noqa: N818  # not an error, but the way out of the loop
    """The network must be removed."""


def emit(event: str, **fields: Any) -> None:
    """Print one event. If the reader has gone, that is no error here, because stdin will end, too."""
    try:
        print(json.dumps({"event": event, **fields}), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class BootServer:
    """Obeys stdin and watches the children, until a command stops it."""

    def __init__(self, network: Network, children: Children) -> None:
        """Serve a network that already runs."""
        self._network = network
        self._children = children
        self._selector = selectors.PollSelector()  # epoll refuses a stdin that is a file or /dev/null
        self._pending = b""
        self._checks: subprocess.Popen[bytes] | None = None
        self._result: dict[str, Any] | None = None

    def serve(self, signals: int) -> None:
        """Obey stdin until Stop; signal numbers are read from the descriptor `signals`."""
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._commands)
        self._selector.register(signals, selectors.EVENT_READ, self._signals)
        while True:
            for key, _ in self._selector.select():
                key.data(key.fd)

    def _signals(self, descriptor: int) -> None:
        numbers = os.read(descriptor, 4096)
        if any(number in numbers for number in STOP_SIGNALS):
            raise Stop
        self._reap()

    def _reap(self) -> None:
        for name, code in self._children.reap():
            if name != CHECK:
                emit("exited", id=name, code=code)

    def _commands(self, descriptor: int) -> None:
        data = os.read(descriptor, 65536)
        if not data:
            raise Stop
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._obey(parse_command(line))

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "start":
                self._start(command)
            case "signal":
                self._children.signal(command["id"], command["signal"])
            case "check":
                self._check()
            case "shape":
                mbps = check_rate(command["mbps"], "shape: mbps")
                self._network.shape(command["host"], mbps)
                emit("shaped", host=command["host"], mbps=mbps)
            case "stop":
                raise Stop

    def _start(self, command: dict[str, Any]) -> None:
        child = self._children.start(
            command["id"],
            self._network.namespace(command["node"]),
            command["argv"],
            env=command.get("env", {}),
            log=Path(command["log"]) if "log" in command else None,
            cwd=Path(command["cwd"]) if "cwd" in command else None,
        )
        emit("started", id=command["id"], pid=child.pid)

    def _check(self) -> None:
        """Run the checks in a separate process: they take seconds, and this process must obey a stop meanwhile."""
        argv = [sys.executable, str(Path(__file__).with_name("checks.py")), json.dumps(self._network.describe())]
        self._result = None
        self._checks = self._children.start(CHECK, self._network.root, argv, env={}, stdout=subprocess.PIPE)
        assert self._checks.stdout is not None
        self._selector.register(self._checks.stdout, selectors.EVENT_READ, lambda _: self._relay())

    def _relay(self) -> None:
        """Pass on one line of the checks. The checks' result is sent when their process has ended, so that new checks
        may start."""
        assert self._checks is not None and self._checks.stdout is not None
        line = self._checks.stdout.readline()
        event = json.loads(line) if line else {}
        if event.get("event") == "check":
            emit(**event)
        elif event:
            self._result = event
        else:
            self._checks_ended(self._checks, self._checks.stdout)

    def _checks_ended(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._selector.unregister(output)
        output.close()
        process.wait()
        self._reap()
        if self._result is None:
            raise NetworkError(
                f"the checks ended with code {process.returncode} and no result: see their log or stderr"
            )
        emit(**self._result)


def parse_command(line: bytes) -> dict[str, Any]:
    """Parse and check one line of stdin; NetworkError names the wrong field."""
    try:
        command = json.loads(line)
    except ValueError as error:
        raise NetworkError(f"command {line!r} is not JSON: {error}") from error
    if not isinstance(command, dict) or command.get("do") not in COMMANDS:
        raise NetworkError(f"command {line!r}: do must be one of {', '.join(COMMANDS)}")
    needed, optional = COMMANDS[command["do"]]
    allowed = {**needed, **optional}
    for field in needed:
        if field not in command:
            raise NetworkError(f"command {command['do']} must have {', '.join(needed)}, got no {field}")
    for field, value in command.items():
        if field != "do" and (field not in allowed or not isinstance(value, allowed[field])):
            raise NetworkError(f"command {command['do']}: fields must be {_form(allowed)}, got {field} = {value!r}")
    _strings(command.get("argv", ["x"]), f"command {command['do']}: argv")
    _strings([*command.get("env", {}).values()], f"command {command['do']}: env")
    return command


def _form(fields: dict[str, Any]) -> str:
    names = [f"{name} ({getattr(kind, '__name__', 'number or null')})" for name, kind in fields.items()]
    return ", ".join(names) or "none"


def _strings(values: list[Any], what: str) -> None:
    if not all(isinstance(value, str) for value in values) or (what.endswith("argv") and not values):
        raise NetworkError(f"{what} must be strings (argv: one or more), got {values!r}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Boot kofn's network; JSON lines on stdin and stdout.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--topology", type=Path, help="a topology.json")
    source.add_argument("--hosts", type=int, help="number of hosts of a star instead")
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
    try:
        management = IPv4Network(options.management)
    except ValueError as error:
        raise NetworkError(f"--management is {options.management!r}: {error}") from error
    if not 1280 <= options.mtu <= 65535:
        raise NetworkError(f"--mtu must be 1280 to 65535, got {options.mtu}")
    return NetworkPlan(
        topology=wanted(options),
        driver=options.driver,
        management=management,
        mtu=options.mtu,
        coalesced=options.gso,
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


def watch_signals() -> int:
    """Return a descriptor from which each signal can be read, as one byte with the signal's number."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def run(options: argparse.Namespace) -> None:
    signals = watch_signals()
    with Network(plan(options)) as network:
        children = Children(network.record, options.log_dir)
        try:
            emit("ready", **network.describe())
            BootServer(network, children).serve(signals)
        except Stop:
            return
        finally:
            network.record.stop_begins()
            for name, code in children.end():
                if name != CHECK:
                    emit("exited", id=name, code=code)


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
