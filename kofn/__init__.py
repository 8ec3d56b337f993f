"""In-network gradient aggregation from the fastest k of n workers.

The parts are distributions of their own (docs/explanation/architecture.md); this one puts them together.

>>> import kofn
>>> config = kofn.Config.parse("[job]\\nworkers = 8")
>>> config.job.workers
8
>>> kofn.Config.parse("[job]\\nworkers = 65")
Traceback (most recent call last):
kofn_common.config.errors.ConfigError: job.workers must be 1 to 64 with job.racks = 1, got 65
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kofn.report.reader import Run, read
    from kofn.run import RunPackage
    from kofn.sim.library import simulate
    from kofn_common.config.errors import ConfigError, KofnError
    from kofn_common.config.schema import Config
    from kofn_host.collectives.communicator import Communicator

    run: RunPackage

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; kofn reports each failure once

__all__ = ["Communicator", "Config", "ConfigError", "KofnError", "Run", "read", "run", "simulate"]

_PUBLIC = {
    "Communicator": "kofn_host.collectives.communicator",
    "Config": "kofn_common.config.schema",
    "ConfigError": "kofn_common.config.errors",
    "KofnError": "kofn_common.config.errors",
    "Run": "kofn.report.reader",
    "read": "kofn.report.reader",
    "simulate": "kofn.sim.library",
}
"""The module of each name; kofn.run is a package that is called."""


if not TYPE_CHECKING:  # type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import public names when they are used: a switch alone does not load the modules of a run."""
        if name == "run":
            return import_module("kofn.run")
        if name not in _PUBLIC:
            raise AttributeError(f"module 'kofn' has no attribute {name!r}: it has {', '.join(__all__)}")
        return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
