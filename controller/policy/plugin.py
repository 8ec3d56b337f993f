"""Objectives of other packages, whose results are not trusted.

A plug-in's costs get a `Forecast` and return those of k = 1..n. They are called several times a decision and must
depend on the forecast alone: the model's uncertainty is expressed by small moves of the forecast. They run in the
controller's only thread: a call that blocks stops the controller (the switch goes on with the last k).
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kofn.config.errors import ConfigError
from kofn.config.plugins import in_words
from kofn.controller.errors import ObjectiveError
from kofn.controller.estimate.measurements import FloatArray

if TYPE_CHECKING:
    from kofn.controller.policy.objective import Forecast  # which asks us for plug-ins


def guarded(called: str, costs: "Callable[[Forecast], Any]") -> "Callable[[Forecast], FloatArray]":
    """A plug-in's costs, checked; ObjectiveError says what it did instead, ConfigError that it is no function."""
    if not callable(costs):
        raise ConfigError(
            f"{called} is a {type(costs).__name__}: an Objective, or a callable that takes a Forecast and returns the "
            "costs of k = 1..n, is needed"
        )

    def checked(forecast: "Forecast") -> FloatArray:
        own = copy.deepcopy(forecast)
        try:
            found = np.array(costs(own), dtype=np.float64)
        except Exception as error:  # whatever it raises: it must not end the controller
            raise ObjectiveError(f"{called} failed: {in_words(error)}") from error
        if found.shape != (forecast.workers,):
            wanted = f"{forecast.workers} costs, one for each k, are needed"
            raise ObjectiveError(f"{called} gave the shape {found.shape}: {wanted}")
        if not np.isfinite(found).all():
            k = int(np.flatnonzero(~np.isfinite(found))[0]) + 1
            what = f"gave {found[k - 1]} as the cost of k = {k}: finite numbers are needed"
            raise ObjectiveError(f"{called} {what}")
        return found

    return checked
