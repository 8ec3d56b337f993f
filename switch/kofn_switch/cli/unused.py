"""simple_switch's and simple_switch_grpc's flags that change nothing here, each with the reason."""

import argparse
from collections.abc import Mapping

LOG_ROTATION = "log files are not rotated"
NANOMSG = "there are no nanomsg sockets"
GROUPS = "multicast groups and their replicas have no such limit"
DEBUGGER = "there is no debugger; --trace shows the way of packets"

VALUED = {
    "--debugger-addr": DEBUGGER,
    "--dump-packet-data": "--trace shows packets, --pcap keeps them",
    "--log-file-max-files": LOG_ROTATION,
    "--log-file-max-size": LOG_ROTATION,
    "--max-port-count": "there are 512 ports",
    "--nanolog": NANOMSG,
    "--notifications-addr": NANOMSG,
    "--packet-in": NANOMSG,
    "--restore-state": "state is not saved",
}
PLAIN = {"--debugger": DEBUGGER, "--log-flush": "every line is flushed"}

TARGET_VALUED = {
    "--dp-grpc-server-addr": "packets come from interfaces and files",
    "--load-modules": "there are no modules",
    "--max-l1-entries": GROUPS,
    "--max-l2-entries": GROUPS,
    "--max-mc-groups": GROUPS,
}
TARGET_PLAIN = {
    "--disable-swap": "a pushed program takes effect at once",
    "--enable-swap": "a pushed program takes effect at once",
}

HELP = "\n".join(
    [
        *(f"  {f'{flag} VALUE':<29} ignored: {reason}" for flag, reason in TARGET_VALUED.items()),
        *(f"  {flag:<29} ignored: {reason}" for flag, reason in TARGET_PLAIN.items()),
    ]
)
"""Help lines of the target's flags, which argparse does not show."""


def add_arguments(parser: argparse.ArgumentParser, valued: Mapping[str, str], plain: Mapping[str, str]) -> None:
    for flag, reason in valued.items():
        parser.add_argument(flag, metavar="VALUE", help=f"ignored: {reason}")
    for flag, reason in plain.items():
        parser.add_argument(flag, action="store_true", help=f"ignored: {reason}")


def given(told: argparse.Namespace, *tables: Mapping[str, str]) -> list[str]:
    """Return `FLAG VALUE: reason` for each flag that was given."""
    return [
        f"{flag}{'' if value is True else f' {value}'}: {reason}"
        for table in tables
        for flag, reason in table.items()
        if (value := getattr(told, flag[2:].replace("-", "_")))
    ]
