"""`kofn` from its first moment: Ctrl-C while libraries are loaded ends it like any other."""

import sys


def main() -> None:
    """Load the commands, run the one that is asked for; exit code 130 where it was interrupted before."""
    try:
        from controller.cli import main as command  # noqa: PLC0415  # half a second, in which a key may be pressed
    except KeyboardInterrupt:
        sys.exit(130)
    command()
