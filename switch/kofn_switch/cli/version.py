"""The option -v. Only this option looks the version up, because the look-up takes longer than the rest of the command
line."""

import argparse
from typing import Any, NoReturn

from kofn_switch.identity import NAME, version


class ShowVersion(argparse.Action):
    """An option without a value that prints the version and ends the process."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None
    ) -> NoReturn:
        print(f"{NAME} {version()}")
        parser.exit()
