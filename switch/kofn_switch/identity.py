"""The switch's own name and version, whatever its command is called."""

import functools

NAME = "kofn-switch"


@functools.cache
def version() -> str:
    """Return the version of kofn, or of the switch that is installed without it; the lookup takes a while."""
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version("kofn")
    except metadata.PackageNotFoundError:
        return metadata.version(NAME)
