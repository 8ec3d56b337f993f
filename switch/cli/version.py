"""-v: the version, looked up when it is asked for, as that takes longer than the rest of the command line."""

import argparse
from typing import Any, NoReturn


class ShowVersion(argparse.Action):
    """An option without a value that prints the version and ends the process."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None
    ) -> NoReturn:
        print(f"kofn-switch {_version()}")
        parser.exit()


def _version() -> str:
    """Of kofn, or of the switch that is installed without it."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("kofn")
    except PackageNotFoundError:
        return version("kofn-switch")
