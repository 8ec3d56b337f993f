"""Columns and figures of codecs.toml and codecs-link.toml: accuracy, and iteration times around a link's change."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kofn.experiments.reader import Experiment, FinishedTrial
from kofn.report.figures import SIZE_INCHES, STYLE
from kofn.report.summarise import first_finishes, training_start_s
from kofn_common.results.event_log import read_event_log


def accuracy(trial: FinishedTrial) -> dict[str, float]:
    """Return the accuracy at the end."""
    return {"final_accuracy": first_finishes(trial.metrics())[-1].accuracy or 0.0}


def changes(trial: FinishedTrial) -> dict[str, float | None]:
    """Return the accuracy at the end, and iteration times around the change of a link's rate."""
    metrics = trial.metrics()
    times = [line.time for line in first_finishes(metrics)]
    events = read_event_log(trial.folder.events)
    changed = [entry.time for entry in events if entry.action == "link" and not entry.missed]
    changed_in = 1 + bisect_left(times, changed[0]) if changed and changed[0] <= times[-1] else None
    iteration_s = np.diff([training_start_s(metrics), *times]).tolist()
    return {**accuracy(trial), **around_change(iteration_s, changed_in)}


def around_change(iteration_s: Sequence[float], changed_in: int | None) -> dict[str, float | None]:
    """Return iteration times around the change of a link's rate in iteration `changed_in`, counted from 1.

    `before_s` is the median time of the iterations before the change: a median, because the first iteration includes
    preparations. `change_s` is the time of the iteration with the change. `after_s` is the mean time of the iterations
    afterwards.
    """
    at = changed_in or 1
    before, after = iteration_s[: at - 1], iteration_s[at:] if changed_in else []
    return {
        "before_s": median(before) if before else None,
        "change_s": iteration_s[at - 1] if changed_in else None,
        "after_s": fmean(after) if after else None,
    }


def accuracies(experiment: Experiment) -> Figure:
    """Draw the accuracy over the iterations."""
    return _over_iterations({"held-out accuracy [%]": _first(experiment).assign(y=lambda rows: 100 * rows["accuracy"])})


def norms(experiment: Experiment) -> Figure:
    """Draw the norms of the encoding error and of the pending values over the iterations."""
    rows = _first(experiment)
    size = rows["gradient_norm2"] ** 0.5
    return _over_iterations(
        {
            "encoding error": rows.assign(y=rows["error_norm"] / size),
            "residual": rows.assign(y=rows["residual_norm"] / size),
        }
    )


def iteration_times(experiment: Experiment) -> Figure:
    """Draw the times between the iterations' ends, in a panel for each link."""
    rows = _first(experiment)
    rows["y"] = 1e3 * rows.groupby(experiment.by)["time"].diff()
    return _over_iterations({f"link = {name} [ms]": several for name, several in rows.groupby("link", sort=False)})


def sent(experiment: Experiment) -> Figure:
    """Draw the share of a gradient's bytes that is sent, in a panel for each link."""
    rows = _first(experiment).assign(y=lambda rows: rows["wire_ratio"])
    return _over_iterations({f"link = {name}": several for name, several in rows.groupby("link", sort=False)})


def _first(experiment: Experiment) -> pd.DataFrame:
    """Return the first seed's metrics, of the worker that finished each iteration first."""
    rows = experiment.metrics.query("seed == 1").sort_values("time").drop_duplicates([*experiment.by, "iteration"])
    return rows.sort_index().sort_values("iteration", kind="stable")


def _over_iterations(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw column `y` over the iterations, with a line for each contender; dashed without error feedback."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 3.0 * len(panels)), layout="constrained")
        several = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (title, rows) in zip(several, panels.items(), strict=True):
            stems = list(dict.fromkeys(name.removesuffix("-no-feedback") for name in rows["contender"]))
            for name, line in rows.groupby("contender", sort=False):
                stem = name.removesuffix("-no-feedback")
                style = "-" if stem == name else "--"
                axes.plot(line["iteration"], line["y"], style, color=f"C{stems.index(stem)}", linewidth=1.2, label=name)
            axes.set(title=title)
            axes.set_ylim(bottom=0)
        several[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        several[-1].set_xlabel("iteration")
    return figure
