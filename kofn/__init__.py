"""In-network gradient aggregation from the fastest k of n workers.

Each folder of the table in docs/explanation/architecture.md is a subpackage: `kofn.host`, `kofn.switch`,
`kofn.controller` and so on.  In a checkout host/, controller/, mininet/ and p4src/ stand at the top and are loaded from
there; kofn/ holds a link to each for tools that follow no `__path__`.

>>> import kofn
>>> config = kofn.Config.parse("[job]\\nworkers = 8")
>>> config.job.workers
8
>>> kofn.Config.parse("[job]\\nworkers = 65")
Traceback (most recent call last):
kofn.config.errors.ConfigError: job.workers must be 1 to 64 with job.racks = 1, got 65
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kofn.config.errors import ConfigError, KofnError
    from kofn.config.schema import Config
    from kofn.host.collectives.communicator import Communicator
    from kofn.report.reader import Run, read
    from kofn.run import RunPackage
    from kofn.sim.library import simulate

    run: RunPackage

_CHECKOUT = os.path.dirname(__path__[0])
if os.path.exists(os.path.join(_CHECKOUT, "pyproject.toml")):
    __path__.insert(0, _CHECKOUT)

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; kofn reports each failure once

__all__ = ["Communicator", "Config", "ConfigError", "KofnError", "Run", "read", "run", "simulate"]

_PUBLIC = {
    "Communicator": "kofn.host.collectives.communicator",
    "Config": "kofn.config.schema",
    "ConfigError": "kofn.config.errors",
    "KofnError": "kofn.config.errors",
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
