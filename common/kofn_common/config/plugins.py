"""Plug-ins by name: built-in plug-ins, plug-ins of installed packages, and `module:Name` of a user.

A built-in plug-in is a file: `ring` is the `ring` of host/kofn_host/collectives/kinds/ring.py. An installed package
gives a name by an entry point. `module:Name` is looked for in the working folder, then in the folder of the
configuration (job.modules), then in Python's search path. A registry knows names; nothing is imported before load().
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

from kofn_common.config.errors import ConfigError
from kofn_common.config.suggestion import did_you_mean
from kofn_common.extras import EXTRAS, remedy
from kofn_common.places import folder_of

OWN = ("kofn", "kofn_common")
"""Packages whose folders hold configurations of kofn itself."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""The name of an entry point. It must not be a number, because `kofn set-k` takes a number for a k."""

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""`module:Name`."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """All plug-ins of one kind; `folders`, PACKAGE/FOLDER, hold a module for each built-in plug-in.

    `several`: for each module that holds several plug-ins, their names; every other module has its plug-in's name.
    `reserved`: names that no installed package can use.

    >>> COLLECTIVES.find("ring").value
    'kofn_host.collectives.kinds.ring:ring'
    >>> COLLECTIVES.check("mesh", "job.collective")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kofn_common.config.errors.ConfigError: job.collective must be ... or module:Name, got 'mesh'
    """

    kind: str
    folders: tuple[str, ...]
    several: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reserved: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return f"kofn.{self.kind.replace(' ', '_')}s"

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(folder.partition("/")[0].replace("_", "-") for folder in self.folders)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of the built-in plug-ins."""
        return tuple(self._modules())

    @property
    def names(self) -> tuple[str, ...]:
        """The names that need no colon."""
        return (*self.built_in, *sorted({entry.name for entry in self._installed()}))

    def find(self, name: str) -> EntryPoint | None:
        """Return the entry point of this name; None if there is none. Raise ConfigError if two installed packages
        give it."""
        if module := self._modules().get(name):
            return EntryPoint(name, f"{module}:{name}", self.group)
        if MODULE.fullmatch(name):
            return EntryPoint(name, name, self.group)
        found = {entry.value: entry for entry in self._installed() if entry.name == name}
        if len(found) > 1:
            raise ConfigError(
                f"{self.kind} {name!r} is given by {' and '.join(sorted(found))}: remove one of these packages"
            )
        return next(iter(found.values()), None)

    def known(self, name: str) -> bool:
        """Return whether a plug-in has this name. Also return True if the packages with the built-in plug-ins are not
        installed here: the process that loads the plug-in, elsewhere, checks the name."""
        return self.find(name) is not None or (not self.built_in and NAME.fullmatch(name) is not None)

    def check(self, name: str, field: str) -> None:
        """Raise ConfigError if no plug-in has this name; load() checks the Name of `module:Name`."""
        if not self.known(name):
            meant = did_you_mean(name, self.names)
            raise ConfigError(f"{field} must be {', '.join(self.names)} or module:Name, got {name!r}{meant}")

    def load(self, name: str) -> Any:
        """Load the plug-in. Raise ConfigError if there is none of this name, or it cannot be imported."""
        self.check(name, self.kind)
        entry = self.find(name)
        if entry is None:
            raise ConfigError(f"{self.kind} {name!r} cannot be loaded: {' or '.join(self.packages)} is not installed")
        if entry.value == name:
            folders = [folder for folder in (os.getcwd(), *_FOLDERS) if folder not in sys.path]
            sys.path[:0] = folders  # `python -m` has put the working folder there already
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            words = remedy(error) if package in EXTRAS else in_words(error)
            if error.name == entry.module:
                words += f" (looked for in {', '.join(dict.fromkeys((os.getcwd(), *_FOLDERS)))})"
            raise ConfigError(f"{self.called(name)} cannot be loaded: {words}") from error
        except Exception as error:  # any error of a foreign module's import
            raise ConfigError(f"{self.called(name)} cannot be loaded: {in_words(error)}") from error

    def load_class(self, name: str, base: type[T]) -> type[T]:
        """Return a class derived from `base`. Raise ConfigError for another object, or an abstract class."""
        found = self.load(name)
        if not (isinstance(found, type) and issubclass(found, base)):
            what = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
            wanted = f"a class derived from {base.__module__}.{base.__name__}"
            raise ConfigError(f"{self.called(name)} must be {wanted}, got {what}")
        if missing := sorted(getattr(found, "__abstractmethods__", ())):
            raise ConfigError(f"{self.called(name)} must define {', '.join(missing)}, got an abstract class")
        return found

    def called(self, name: str) -> str:
        """Return kind and name for messages, and the origin if the name does not say it."""
        entry = self.find(name)
        origin = f" ({entry.value})" if entry is not None and entry.value != name else ""
        return f"{self.kind} {name!r}{origin}"

    def _modules(self) -> dict[str, str]:
        """Return the module of each built-in plug-in."""
        stems = sorted((stem not in self.several, stem, at) for at in self.folders for stem in _stems(at))
        return {
            name: f"{at.replace('/', '.')}.{stem}" for _, stem, at in stems for name in self.several.get(stem, (stem,))
        }

    def _installed(self) -> list[EntryPoint]:
        """Return the installed plug-ins that can be named. None replaces a built-in plug-in."""
        taken = {*self._modules(), *self.reserved}
        return [
            entry for entry in entry_points(group=self.group) if NAME.fullmatch(entry.name) and entry.name not in taken
        ]


_FOLDERS: dict[str, None] = {}


def look_in(folder: str) -> None:
    """Also look for `module:Name` in this folder, unless it is kofn's own."""
    if not any(Path(folder).is_relative_to(folder_of(package).resolve()) for package in OWN):
        _FOLDERS[folder] = None


@cache
def _stems(folder: str) -> list[str]:
    """Return the modules of a package's folder; none where the package is not installed."""
    package, _, below = folder.partition("/")
    return sorted(path.stem for path in (folder_of(package) / below).glob("[a-z]*.py"))


def in_words(error: BaseException) -> str:
    """Return an exception in one line, with its place in a user's code."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Return " (FILE:LINE)", the deepest line of the first module in the traceback that belongs to neither kofn nor
    Python; empty without such a module."""
    frames = [
        (_package(frame.f_globals), frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)
    ]
    users = next((package for package, *_ in frames if not _OURS.match(package)), None)
    places = [f" ({file}:{line})" for package, file, line in frames if package == users]
    return places[-1] if places else ""


def _package(names: Mapping[str, Any]) -> str:
    """Return the top package of a module, by the module's global names."""
    return str(names.get("__name__", "__main__")).partition(".")[0]


_OURS = re.compile(rf"kofn(_\w+)?$|__main__$|({'|'.join(sys.stdlib_module_names)})$")
"""Matches top packages of kofn, Python and the main program."""


CODECS = Registry(
    kind="codec",
    folders=("kofn_host/compression/codecs",),
    several={"fixed_point": ("int32", "int16", "int8", "int4", "auto")},
)
"""compress.codec: a callable that returns a Codec (host/kofn_host/compression/registry.py)."""

COLLECTIVES = Registry(
    kind="collective",
    folders=("kofn_common/collectives/kinds", "kofn_host/collectives/kinds"),
    reserved=("full", "fixed", "adaptive"),
)
"""job.collective: a JobCollective (common/kofn_common/collectives/job_collective.py)."""

DATA_PLANES = Registry(kind="data plane", folders=("kofn_controller/p4runtime/planes",))
"""JobCollective.data_plane: a DataPlane (controller/kofn_controller/p4runtime/data_plane.py)."""

WORKLOADS = Registry(kind="workload", folders=("kofn_host/workload/workloads",))
"""model.workload: a Workload (host/kofn_host/workload/workload.py)."""

STRAGGLERS = Registry(kind="straggler", folders=("kofn_host/workload/stragglers",))
"""model.stragglers: a StragglerSource (host/kofn_host/workload/straggler_source.py)."""
