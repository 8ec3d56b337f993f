"""The command line's options for inspection: files in place of interfaces, captures, traces, generated C."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TRACE_ALL = (1 << 64) - 1

HELP = """\
looking inside:
  --use-files SECONDS   -i 1@a means the files a_in.pcap (must be there; may be a named pipe) and a_out.pcap (is made):
                        packets go in by their times, merged over all files, SECONDS after the program has arrived;
                        each packet sent is in its file at once; the switch goes on until a signal ends it
  --trace [N]           for the first N packets (default: for all): parser states, tables with key and entry, actions,
                        register accesses, conditions, where copies go; such a program is compiled with these calls
  --counts FILE         for each port from 0 on four 64-bit numbers in this machine's order: frames and bytes in, frames
                        and bytes out; the numbers of a file that exists go on
  kill -USR1 PID        print each port's traffic, and the dropped packets by reason; also printed at the end"""

EXAMPLES = """\
  packets from a_in.pcap and b_in.pcap through a program, no root needed, with a trace of each packet:
    python -m kofn_switch --use-files 0 --trace -i 1@a -i 2@b program.json"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The inspection that the command line asks for: pcap files, captures, traces, generated C."""

    wait_s: int | None  # the value of --use-files; None: interfaces are used
    pcap: Path | None  # the folder for captures
    counts: Path | None  # the file for the ports' counters
    trace: int  # packets to trace, 0: none
    trace_udp_port: int | None  # only packets to this port are traced
    dump_c: Path | None

    @property
    def files(self) -> bool:
        """Whether pcap files stand for interfaces."""
        return self.wait_s is not None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `read` reads."""
    add = parser.add_argument
    add("--use-files", type=_seconds, metavar="SECONDS", help="pcap files instead of interfaces (below)")
    add("--pcap", type=_folder, metavar="[DIRECTORY]", help="capture each interface X in X_in.pcap and X_out.pcap")
    add("--counts", type=Path, metavar="FILE", help="count each port's frames and bytes in FILE, which others may read")
    add("--trace", type=_count, default=0, metavar="[N]", help="print the way of packets through the program (below)")
    add("--trace-udp-port", type=port_number, metavar="PORT", help="trace only IPv4 packets to this UDP port")
    add("--dump-c", type=Path, metavar="FILE", help="write the program's generated C, with the P4 lines it is from")


def read(told: argparse.Namespace) -> Inside:
    pcap = None if told.use_files is not None else told.pcap
    return Inside(
        wait_s=told.use_files,
        pcap=pcap,
        counts=told.counts,
        trace=told.trace,
        trace_udp_port=told.trace_udp_port,
        dump_c=told.dump_c,
    )


def ignored(told: argparse.Namespace) -> list[str]:
    """Return the options that have no effect together with other options, each with the reason."""
    both = told.use_files is not None and told.pcap is not None
    return ["--pcap: with --use-files the packets are in files anyway"] if both else []


def joined(arguments: Sequence[str]) -> list[str]:
    """Join each optional value to its option, so that --pcap and --trace do not take the program as their value."""
    result: list[str] = []
    rest = list(arguments)
    while rest:
        one = rest.pop(0)
        if one in OPTIONAL:
            default, is_value = OPTIONAL[one]
            one += "=" + (rest.pop(0) if rest and is_value(rest[0]) else default)
        result.append(one)
    return result


OPTIONAL: dict[str, tuple[str, Callable[[str], bool]]] = {
    "--pcap": (".", lambda text: Path(text).is_dir()),
    "--trace": (str(TRACE_ALL), lambda text: text.lstrip("+-").isdecimal()),
}
"""Options whose value is optional: the default, and a test whether the next argument is their value."""


def port_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a TCP or UDP port, 1 to 65535")
    return int(text)


def _seconds(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds, 0 or more")
    return int(text)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no such directory")
    return Path(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= TRACE_ALL:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of packets, 1 or more")
    return int(text)
