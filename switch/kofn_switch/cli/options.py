"""The command line: simple_switch_grpc's flags as a checked Options value.

An OptionsError is one line with the flag, the rule and the value found. This switch does not need some flags of
simple_switch_grpc. Such a flag is accepted and reported in `ignored`, or refused if ignoring it would mislead.
"""

import argparse
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kofn_common.gso import COALESCED_BYTES
from kofn_switch.cli import unused
from kofn_switch.cli.inspection import EXAMPLES as INSIDE_EXAMPLES
from kofn_switch.cli.inspection import HELP, TRACE_ALL, Inside, add_arguments, ignored, joined, port_number, read
from kofn_switch.cli.names import MakeNames
from kofn_switch.cli.tls import Tls
from kofn_switch.cli.version import ShowVersion
from kofn_switch.compiler.ir.program import DROP_PORT, PORT_MAX, PRIORITIES
from kofn_switch.engine.faults import FaultRule, parse_rule
from kofn_switch.errors import SwitchError

UNIX = "unix:"
JSON_VERSION = "2.24"
TARGET_FLAGS = (
    *(f"--grpc-server-{name}" for name in ("addr", "ssl", "cert", "key", "cacert", "with-client-auth")),
    *("--cpu-port", "--drop-port", "--priority-queues"),
    *unused.TARGET_VALUED,
    *unused.TARGET_PLAIN,
)
LEVELS = ("trace", "debug", "info", "warn", "error", "off")

DESCRIPTION = """\
kofn's embedded switch: runs the JSON that p4c makes for BMv2 as native code and speaks P4Runtime.
It takes simple_switch_grpc's flags; those after -- belong to the target."""

EXAMPLES = f"""\
{HELP}

target flags, after --:
  --grpc-server-addr HOST:PORT  where P4Runtime is served (default 0.0.0.0:9559); or unix:PATH
  --grpc-server-ssl             serve it over TLS, with
  --grpc-server-cert FILE       the server's certificate and
  --grpc-server-key FILE        its key, both PEM
  --grpc-server-with-client-auth  let in only clients with a certificate of
  --grpc-server-cacert FILE     these authorities, PEM
  --cpu-port PORT               the port of packet-in and packet-out (default: none)
  --drop-port PORT              the port that drops (default 511)
  --priority-queues N           1 to {PRIORITIES}; a packet of priority N or more is dropped (default 1)
{unused.HELP}

injected faults, KEY=VALUE with commas between:
  port=P                            one of the ports (needed)
  direction=in|out|both             into the switch, out of it (default: both)
  drop, duplicate, corrupt, reorder probabilities; corrupt flips one bit of the frame, reorder holds it back
                                    until the next one has passed, 20 ms at most
  delay-ms, jitter-ms               delay, and more delay, uniform from 0
  from-s, until-s                   when, since the first frame of the port
  packets=N+N+...                   only these frames of the port and direction, counted from 1

examples:
  wait for a controller to push a program, two ports, the controller on port 255:
    python -m kofn_switch --no-p4 -i 1@s1-eth1 -i 2@s1-eth2 -- --grpc-server-addr 127.0.0.1:50051 --cpu-port 255
  start with a program:
    python -m kofn_switch -i 1@veth1 --device-id 1 p4src/build/kofn.json
  lose a tenth of what comes in at port 1, and the third and fourth frame that go out there:
    python -m kofn_switch --no-p4 -i 1@veth1 --fault port=1,direction=in,drop=0.1 \\
      --fault port=1,direction=out,packets=3+4,drop=1
{INSIDE_EXAMPLES}"""


class OptionsError(SwitchError):
    """A command line that cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, checked."""

    program: Path | None  # p4c's JSON; None: wait for the controller's
    ports: dict[int, str]  # port number to interface
    take_outgoing: bool  # packets that other programs send out of the interfaces come in as well
    gso: int  # the most bytes of frames that leave coalesced; 0: frames leave singly
    device_id: int
    address: str | None  # address of the P4Runtime server: HOST:PORT or unix:PATH; None: no server
    tls: Tls | None  # TLS of the P4Runtime server
    cpu_port: int | None
    drop_port: int
    priority_queues: int
    faults: tuple[FaultRule, ...]
    fault_seed: int
    fault_udp_port: int | None  # only packets to this port have faults
    log_level: str
    log_console: bool
    log_file: Path | None
    thrift_port: int | None  # port for simple_switch_CLI's commands
    inside: Inside
    ignored: tuple[str, ...]  # flags that were given and change nothing, each with the reason


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises OptionsError on a fault."""

    def error(self, message: str) -> NoReturn:
        """Raise one line instead of printing a usage text and exiting."""
        raise OptionsError(f"{message}; see --help")


def parse(arguments: Sequence[str]) -> Options:
    """Return the options. Raise OptionsError, and SystemExit after --help."""
    general, target = _split(list(arguments))
    for flag in TARGET_FLAGS:
        if any(argument.partition("=")[0] == flag for argument in general):
            raise OptionsError(f"{flag} must come after --, because it is a target flag: --no-p4 -- {flag} ...")
    told = _general_parser().parse_args(joined(general))
    if told.log_console and told.log_level == "trace":
        told.trace = told.trace or TRACE_ALL
    aimed = _target_parser().parse_args(target)
    drop_port = _drop_port(aimed.drop_port)
    ports = _ports(told.interface, drop_port)
    return Options(
        program=_program(told.program, told.no_p4),
        ports=ports,
        take_outgoing=told.take_outgoing,
        gso=told.gso,
        device_id=told.device_id,
        address=None if told.no_p4runtime else _address(aimed.grpc_server_addr),
        tls=_tls(aimed),
        cpu_port=_cpu_port(aimed.cpu_port, ports, drop_port),
        drop_port=drop_port,
        priority_queues=_queues(aimed.priority_queues),
        faults=tuple(map(parse_rule, told.fault)),
        fault_seed=told.fault_seed,
        fault_udp_port=told.fault_udp_port,
        log_level=told.log_level,
        log_console=told.log_console,
        log_file=told.log_file,
        thrift_port=told.thrift_port,
        inside=read(told),
        ignored=_ignored(told, aimed),
    )


def check_interfaces(ports: dict[int, str]) -> None:
    """Raise OptionsError when an interface does not exist."""
    existing = sorted(name for _, name in socket.if_nameindex())
    for port, interface in ports.items():
        if interface not in existing:
            raise OptionsError(f"port {port}: no interface is named {interface}; there are {', '.join(existing)}")


def check_address(address: str) -> None:
    """Raise OptionsError when the server cannot listen at the address; the server itself would not say why."""
    if address.startswith(UNIX):
        folder = Path(address.removeprefix(UNIX)).parent
        if not folder.is_dir():
            raise OptionsError(f"--grpc-server-addr {address}: cannot listen: there is no directory {folder}")
        return
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
            probe.listen()
    except OSError as error:
        hint = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
        raise OptionsError(f"--grpc-server-addr {address}: cannot listen: {hint}") from error


def check_log_file(path: Path | None) -> None:
    """Raise OptionsError when the file cannot be written."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise OptionsError(f"--log-file {path}: cannot be written: {error.strerror}") from error


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _general_parser() -> _Parser:
    parser = _Parser(
        prog="python -m kofn_switch",
        usage="python -m kofn_switch [options] [PROGRAM.json] [-- target options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("program", nargs="?", type=Path, metavar="PROGRAM.json", help="p4c's JSON to start with")
    add("--no-p4", action="store_true", help="start without a program; a controller pushes it")
    add("--no-p4runtime", action="store_true", help="serve no P4Runtime, as BMv2's simple_switch does")
    add("-i", "--interface", action="append", default=[], metavar="PORT@INTERFACE", help="a port; repeat for each")
    add("--take-outgoing", action="store_true", help="take in packets that other programs send out of the interfaces")
    add(
        "--gso",
        type=_unsigned,
        default=COALESCED_BYTES,
        metavar="BYTES",
        help=f"most bytes of frames that leave coalesced; 0: frames leave singly (default {COALESCED_BYTES})",
    )
    add("--device-id", type=_unsigned, default=0, metavar="ID", help="P4Runtime's device id (default 0)")
    add("--fault", action="append", default=[], metavar="RULE", help="inject faults at a port (below); may be repeated")
    add("--fault-seed", type=_unsigned, default=0, metavar="N", help="seed of the random faults (default 0)")
    add("--fault-udp-port", type=port_number, metavar="PORT", help="faults only in IPv4 packets to this UDP port")
    add("--log-console", action="store_true", help="log to standard output; -L trace then implies --trace")
    add("--log-file", type=Path, metavar="FILE", help="log to a file")
    add("-L", "--log-level", choices=LEVELS, default="info", help="least severe level logged (default info)")
    add("--thrift-port", type=port_number, metavar="PORT", help="serve simple_switch_CLI's commands at this TCP port")
    add(
        "--make-names",
        action=MakeNames,
        metavar="FOLDER",
        help="write simple_switch_grpc, simple_switch, simple_switch_CLI there, and end",
    )
    add("-v", "--version", action=ShowVersion, nargs=0, help="print the version")
    add("--json-version", action="version", version=JSON_VERSION, help="print the newest version of p4c's JSON read")
    add_arguments(parser)
    unused.add_arguments(parser, unused.VALUED, unused.PLAIN)
    return parser


def _target_parser() -> _Parser:
    parser = _Parser(prog="python -m kofn_switch ... --", add_help=False, allow_abbrev=False)
    parser.add_argument("--grpc-server-addr", default="0.0.0.0:9559")
    for flag in ("cert", "key", "cacert"):
        parser.add_argument(f"--grpc-server-{flag}", type=Path)
    for flag in ("ssl", "with-client-auth"):
        parser.add_argument(f"--grpc-server-{flag}", action="store_true")
    parser.add_argument("--cpu-port")
    parser.add_argument("--drop-port", default=str(DROP_PORT))
    parser.add_argument("--priority-queues", default="1")
    unused.add_arguments(parser, unused.TARGET_VALUED, unused.TARGET_PLAIN)
    return parser


def _unsigned(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2**64 - 1")
    return int(text)


def _ports(interfaces: list[str], drop_port: int) -> dict[int, str]:
    ports: dict[int, str] = {}
    for text in interfaces:
        port_text, _, interface = text.strip().partition("@")
        if not interface or not port_text.isdecimal() or int(port_text) > PORT_MAX:
            raise OptionsError(f"-i {text}: needs PORT@INTERFACE with a port from 0 to {PORT_MAX}, as in -i 1@s1-eth1")
        port = int(port_text)
        if port == drop_port:
            raise OptionsError(f"-i {text}: port {port} is the port that drops; --drop-port chooses another")
        if port in ports:
            raise OptionsError(f"-i {text}: port {port} is {ports[port]} already; each port is given once")
        if interface in ports.values():
            raise OptionsError(f"-i {text}: interface {interface} has a port already; each interface is given once")
        ports[port] = interface
    return ports


def _program(path: Path | None, no_p4: bool) -> Path | None:
    if path is None and not no_p4:
        raise OptionsError("nothing to run: give a PROGRAM.json, or --no-p4 to wait for a controller's; see --help")
    if path is not None and no_p4:
        raise OptionsError(f"--no-p4 starts without a program, but {path} is given; leave out one of the two")
    if path is not None and not path.is_file():
        what = "not a file" if path.exists() else "no such file"
        raise OptionsError(f"{path}: {what}; PROGRAM.json is what p4c --target bmv2 writes")
    return path


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if text.startswith(UNIX) and len(text) > len(UNIX):
        return text
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise OptionsError(f"--grpc-server-addr {text}: needs HOST:PORT with a port from 1 to 65535, or unix:PATH")
    return text


def _cpu_port(text: str | None, ports: dict[int, str], drop_port: int) -> int | None:
    if text is None:
        return None
    if text == str(drop_port):
        raise OptionsError(f"--cpu-port {text}: that is the drop port; --drop-port chooses another")
    if not text.isdecimal() or not 1 <= int(text) <= PORT_MAX:
        raise OptionsError(f"--cpu-port {text}: needs a port from 1 to {PORT_MAX}")
    if int(text) in ports:
        raise OptionsError(f"--cpu-port {text}: that port is {ports[int(text)]} already; the CPU port has no interface")
    return int(text)


def _drop_port(text: str) -> int:
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise OptionsError(f"--drop-port {text}: needs a port from 0 to {PORT_MAX}")
    return int(text)


def _queues(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= PRIORITIES:
        raise OptionsError(f"--priority-queues {text}: needs a number from 1 to {PRIORITIES}, a priority has 3 bits")
    return int(text)


def _tls(aimed: argparse.Namespace) -> Tls | None:
    if not aimed.grpc_server_ssl:
        return None
    for flag in ("cert", "key", *(["cacert"] if aimed.grpc_server_with_client_auth else [])):
        if getattr(aimed, f"grpc_server_{flag}") is None:
            raise OptionsError(f"--grpc-server-ssl must come with --grpc-server-{flag} FILE, got none")
    return Tls(
        certificate=aimed.grpc_server_cert,
        key=aimed.grpc_server_key,
        authority=aimed.grpc_server_cacert,
        client_auth=aimed.grpc_server_with_client_auth,
    )


def _unused_tls(aimed: argparse.Namespace) -> list[str]:
    given = [flag for flag in ("cert", "key", "cacert") if getattr(aimed, f"grpc_server_{flag}") is not None]
    given += ["with-client-auth"] if aimed.grpc_server_with_client_auth else []
    if aimed.grpc_server_ssl:
        given = ["cacert"] if "cacert" in given and "with-client-auth" not in given else []
    missing = "--grpc-server-with-client-auth" if aimed.grpc_server_ssl else "--grpc-server-ssl"
    return [f"--grpc-server-{flag}: {missing} is not given" for flag in given]


def _ignored(told: argparse.Namespace, aimed: argparse.Namespace) -> tuple[str, ...]:
    if told.log_console and told.log_file is not None:
        raise OptionsError("--log-console and --log-file exclude each other")
    return (
        *ignored(told),
        *_unused_tls(aimed),
        *unused.given(told, unused.VALUED, unused.PLAIN),
        *unused.given(aimed, unused.TARGET_VALUED, unused.TARGET_PLAIN),
    )
