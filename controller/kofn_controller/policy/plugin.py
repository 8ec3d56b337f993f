"""Checks the results of objectives from other packages.

The `costs` function of a plug-in takes a `Forecast` and returns the costs of k = 1..n. It is called several times a
decision, with slightly different forecasts that express the model's uncertainty, so its result must depend on the
forecast alone. It runs in the controller's only thread: a call that blocks stops the controller, and the switch
continues with the last k.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import in_words
from kofn_controller.errors import ObjectiveError
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.forecast import Forecast


def guarded(called: str, costs: Callable[[Forecast], Any]) -> Callable[[Forecast], FloatArray]:
    """Return a plug-in's costs function with checks: it raises ObjectiveError if the result is not usable. ConfigError
    if `costs` is no function.
    """
    if not callable(costs):
        raise ConfigError(
            f"{called} must be an Objective, or a callable that takes a Forecast and returns the costs of k = 1..n, "
            f"got {type(costs).__name__}"
        )

    def checked(forecast: Forecast) -> FloatArray:
        own = copy.deepcopy(forecast)
        try:
            found = np.array(costs(own), dtype=np.float64)
        except Exception as error:  # whatever it raises: it must not end the controller
            raise ObjectiveError(f"{called} failed: {in_words(error)}") from error
        if found.shape != (forecast.workers,):
            wanted = f"must give {forecast.workers} costs, one for each k"
            raise ObjectiveError(f"{called} {wanted}, got the shape {found.shape}")
        if not np.isfinite(found).all():
            k = int(np.flatnonzero(~np.isfinite(found))[0]) + 1
            raise ObjectiveError(f"{called} must give finite costs, got {found[k - 1]} for k = {k}")
        return found

    return checked
