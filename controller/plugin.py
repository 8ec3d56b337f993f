"""Objectives of other packages: found by their entry point, loaded, and not trusted in what they return.

A plug-in is a callable that gets a `Forecast` and returns the costs of k = 1..n. It is called several times a decision
and has to depend on the forecast alone: what is not known of the workers is told by moving the forecast a little. It
runs in the controller's only thread: one that blocks stops the controller (the switch goes on with the last k).
"""

import copy
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import numpy as np

from controller.errors import ObjectiveError
from controller.measure import FloatArray
from run.errors import ConfigError
from run.objectives import GROUP

if TYPE_CHECKING:
    from controller.choose import Forecast  # which asks us for plug-ins


def load(entry: EntryPoint) -> "Callable[[Forecast], FloatArray]":
    """The costs behind an entry point; ConfigError where it cannot be loaded."""
    try:
        costs = entry.load()
    except Exception as error:  # whatever a foreign module does when it is imported
        raise ConfigError(f"objective {entry.name!r} ({entry.value}) cannot be loaded: {_words(error)}") from error
    if not callable(costs):
        raise ConfigError(
            f"objective {entry.name!r} ({entry.value}) is a {type(costs).__name__}: the entry point in {GROUP!r} has "
            "to name a callable that takes a Forecast and returns the costs of k = 1..n"
        )
    return _guarded(entry, costs)


def _guarded(entry: EntryPoint, costs: "Callable[[Forecast], Any]") -> "Callable[[Forecast], FloatArray]":
    """The plug-in's costs, checked; ObjectiveError says what it did instead."""

    def checked(forecast: "Forecast") -> FloatArray:
        own = copy.deepcopy(forecast)
        try:
            found = np.array(costs(own), dtype=np.float64)
        except Exception as error:  # whatever it raises: it must not end the controller
            raise ObjectiveError(f"objective {entry.name!r} ({entry.value}) failed: {_words(error)}") from error
        if found.shape != (forecast.workers,):
            wanted = f"{forecast.workers} costs, one for each k, are needed"
            raise ObjectiveError(f"objective {entry.name!r} ({entry.value}) gave the shape {found.shape}: {wanted}")
        if not np.isfinite(found).all():
            k = int(np.flatnonzero(~np.isfinite(found))[0]) + 1
            what = f"gave {found[k - 1]} as the cost of k = {k}: finite numbers are needed"
            raise ObjectiveError(f"objective {entry.name!r} ({entry.value}) {what}")
        return found

    return checked


def _words(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
