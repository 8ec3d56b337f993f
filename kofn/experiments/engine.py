"""Runs independent tasks: in turn, in processes of this machine, or on a Dask cluster.

A task is a call of an importable function with a picklable item. If a worker of Dask dies, Dask runs its tasks on
another worker.
"""

import contextlib
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kofn.experiments.children import children
from kofn.run.lab.lab_file import Lab
from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import in_words

T = TypeVar("T")
R = TypeVar("R")

CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The form of a class's name: `module:Class`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEngine:
    """Runs tasks in processes, or on a cluster. `cluster` is the address of a Dask scheduler, or the class of a
    cluster, whose settings are in Dask's configuration files.

    Examples of a cluster are tcp://10.0.0.1:8786, dask_jobqueue:SLURMCluster and dask_kubernetes.operator:KubeCluster.
    A class's cluster gets `processes` workers or jobs.
    """

    processes: int = 1
    cluster: str | None = None
    lab: Lab | None = None
    """The machines of real runs; None: this machine."""

    def results(
        self, call: Callable[[T], R], items: Sequence[T], lost: Callable[[T, str], R]
    ) -> Iterator[tuple[int, R]]:
        """Yield the place and the result of every item, in order of completion.

        `lost` makes the result of an item that a cluster gives up because workers have died during its task.
        """
        if self.cluster is not None:
            yield from self._on_cluster(self.cluster, call, items, lost)
        elif self.processes == 1:
            yield from ((place, call(item)) for place, item in enumerate(items))
        else:
            with children(self.processes) as pool:
                yield from pool.imap_unordered(_Placed(call), enumerate(items))

    def in_order(self, call: Callable[[T], R], items: Sequence[T], lost: Callable[[T, str], R]) -> Iterator[R]:
        """Yield the results in the order of the items. A result is yielded as soon as this result and all earlier
        results are there."""
        early: dict[int, R] = {}
        following = 0
        for place, result in self.results(call, items, lost):
            early[place] = result
            while following in early:
                yield early.pop(following)
                following += 1

    def _on_cluster(
        self, cluster: str, call: Callable[[T], R], items: Sequence[T], lost: Callable[[T, str], R]
    ) -> Iterator[tuple[int, R]]:
        import distributed  # noqa: PLC0415  # from the extra "cluster"

        with contextlib.ExitStack() as open_:
            client = open_.enter_context(distributed.Client(self._address(cluster, open_)))
            futures = client.map(call, items, pure=False)
            places = {future.key: place for place, future in enumerate(futures)}
            for future in distributed.as_completed(futures):
                place = places[future.key]
                error = future.exception()  # waits if the result was lost with its worker, and is computed again
                yield place, future.result() if error is None else lost(items[place], in_words(error))

    def _address(self, cluster: str, open_: contextlib.ExitStack) -> Any:
        """Return a scheduler's address, or a new cluster of a class, which ends with `open_`."""
        if CLASS.fullmatch(cluster) is None:
            return cluster
        import dask.config  # noqa: PLC0415  # from the extra "cluster"

        module, _, name = cluster.partition(":")
        kind = getattr(importlib.import_module(module), name)
        # dask-jobqueue writes the interpreter's path into a shell script as it is: a path with a space needs quotes.
        quoted = {
            f"jobqueue.{queue}.python": shlex.quote(sys.executable)
            for queue, settings in dask.config.get("jobqueue", {}).items()
            if settings.get("python") is None
        }
        open_.enter_context(dask.config.set(quoted))
        made = open_.enter_context(kind())
        made.scale(self.processes)
        return made

    def check(self) -> None:
        """Raise ConfigError unless the cluster is an address or an existing class."""
        if self.cluster is None or "://" in self.cluster:
            return
        if CLASS.fullmatch(self.cluster) is None:
            raise ConfigError(f"--cluster must be tcp://HOST:PORT or module:Class, got {self.cluster!r}")
        module, _, name = self.cluster.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError as error:
            raise ConfigError(f"--cluster {self.cluster}: {in_words(error)}") from error
        if not isinstance(found, type):
            raise ConfigError(f"--cluster {self.cluster}: {module} has no class {name}")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A call of an item with its place."""

    call: Callable[[Any], Any]

    def __call__(self, placed: tuple[int, Any]) -> tuple[int, Any]:
        place, item = placed
        return place, self.call(item)
