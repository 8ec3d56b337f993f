"""`kofn` from its first moment: Ctrl-C while libraries are loaded ends it like any other, a missing one in a line."""

import gc
import sys

from kofn_common.extras import remedy


def main() -> None:
    """Load the commands, run the one that is asked for; exit code 130 where it was interrupted before."""
    try:
        from kofn.cli.main import main as command  # noqa: PLC0415  # half a second, in which a key may be pressed
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        command()
    except ModuleNotFoundError as error:
        sys.exit(f"kofn: {remedy(error)}")
    finally:
        gc.freeze()  # the end of the process frees all: it need not be looked through once more


if __name__ == "__main__":
    main()
