"""The switch's own name and version, whatever its command is called."""

import functools

NAME = "kofn-switch"


@functools.cache
def version() -> str:
    """Return the version; the lookup takes a while."""
    from importlib import metadata  # noqa: PLC0415

    return metadata.version(NAME)
