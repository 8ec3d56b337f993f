"""`simple_switch_CLI`: sends commands, typed or from standard input, to a running switch."""

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kofn_switch.cli.inspection import port_number

INTRO = "Control utility for runtime P4 table manipulation"
PROMPT = "RuntimeCmd: "
ENDS = ("EOF", "exit", "quit")

TIMEOUT_S = 60.0
"""The timeout of one answer; a large register takes seconds."""


class NoAnswer(Exception):  # noqa: N818 - says what happened
    """The server is no switch of kofn's, or has gone."""


def main() -> int:
    """Return the exit code: 1 without an answer, 130 after Ctrl-C, 141 when the reader of the output has gone."""
    told = _arguments()
    try:
        code = _converse(told)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print()
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the output's reader, such as `head`, has ended: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _converse(told: argparse.Namespace) -> int:
    try:
        connection = socket.create_connection((told.thrift_ip, told.thrift_port), told.timeout)
    except OSError as error:
        reason = error.strerror or error
        print(f"Could not connect to the switch on port {told.thrift_port}: {reason}", file=sys.stderr)
        return 1
    print(INTRO)
    with connection, connection.makefile("rb") as answers:
        try:
            for line in _commands():
                print(_answer(connection, answers, line), end="", flush=True)
        except NoAnswer as error:
            print(f"\nThe switch on port {told.thrift_port} {error}", file=sys.stderr)
            return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simple_switch_CLI", description=f"{INTRO}; help lists the commands.")
    parser.add_argument(
        "--thrift-port", type=port_number, default=9090, metavar="PORT", help="the switch's (default 9090)"
    )
    parser.add_argument("--thrift-ip", default="localhost", metavar="HOST", help="the switch's (default localhost)")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"for the switch to answer (default {TIMEOUT_S:g})",
    )
    parser.add_argument("--json", metavar="FILE", help="ignored: the switch knows its program")
    parser.add_argument("--pre", metavar="TYPE", help="ignored: there is one multicast engine")
    return parser.parse_args()


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found


def _commands() -> Iterator[str]:
    """Yield the lines of standard input, with a prompt for each line, as in BMv2's tool."""
    with contextlib.suppress(EOFError, ImportError):
        if sys.stdin.isatty():
            import readline  # noqa: F401, PLC0415 - its import gives `input` a history
        while (line := input(PROMPT).strip()) not in ENDS:
            yield line
        return
    print()


def _answer(switch: socket.socket, answers: IO[bytes], line: str) -> str:
    """Return the answer to a command. The client carries out the commands that concern its shell and files."""
    name, _, rest = line.partition(" ")
    if name == "shell":
        shell = subprocess.run(rest, shell=True, stdout=subprocess.PIPE, text=True, errors="replace", check=False)
        return f"{shell.stdout}\n"
    if name != "write_config_to_file":
        return _ask(switch, answers, line)
    config = _ask(switch, answers, "get_config")
    if config.startswith("Error: "):
        return config
    try:
        Path(rest.strip()).write_text(config.removesuffix("\n"))
    except OSError as error:
        return f"Error: {rest.strip() or 'no file'} cannot be written: {error.strerror}\n"
    return ""


def _ask(switch: socket.socket, answers: IO[bytes], line: str) -> str:
    if not line:
        return ""
    try:
        switch.sendall(f"{line}\n".encode(errors="replace"))
        answer = answers.readline()
    except TimeoutError as error:
        raise NoAnswer(f"has not answered in {switch.gettimeout():g} s") from error
    except OSError as error:
        raise NoAnswer(f"is gone: {error.strerror}") from error
    if not answer:
        raise NoAnswer("is gone: it has closed the connection")
    try:
        return str(json.loads(answer))
    except ValueError as error:
        raise NoAnswer("is none of kofn's: its answer is no line of JSON") from error


if __name__ == "__main__":
    sys.exit(main())
