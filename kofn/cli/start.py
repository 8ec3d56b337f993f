"""The start of `kofn`: Ctrl-C ends the command while libraries are loaded; a missing library ends it with a line."""

import gc
import sys

from kofn_common.extras import remedy


def main() -> None:
    """Load the commands, and run the requested command. End with exit code 130 if Ctrl-C comes while the commands are
    loaded."""
    try:
        from kofn.cli.main import main as command  # noqa: PLC0415  # half a second, in which a key may be pressed
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        command()
    except ModuleNotFoundError as error:
        sys.exit(f"kofn: {remedy(error)}")
    finally:
        gc.freeze()  # the end of the process frees everything: a last garbage collection would only cost time


if __name__ == "__main__":
    main()
