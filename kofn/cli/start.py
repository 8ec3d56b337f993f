"""The start of `kofn`: Ctrl-C while libraries are loaded ends it, and a missing library ends it with a line."""

import gc
import sys

from kofn_common.extras import remedy


def main() -> None:
    """Load the commands, and run the requested command; end with exit code 130 after a Ctrl-C before that."""
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
