"""The text and JSON of `kofn experiment schedule`."""

from collections.abc import Iterator

from kofn.experiments.schedule.arms import TIME, Arms, ContenderArm
from kofn.experiments.tables import Columns, TextTable, count, milliseconds, shown, span
from kofn_host.schedule import PassSchedule

LEGEND = (
    "Medians over the seeds, of the slowest worker, of the last 30 iterations; k = n. x sequential: time over the time"
    " without overlap; x bound: time over the longest way from a layer's forward pass to its next forward pass; x"
    " predicted: time over the prediction of the model of the pipeline. Bound and prediction use the measured"
    " computation. searched: iterations until the final schedule was found."
)


def tables(arms: Arms) -> Iterator[TextTable]:
    """Yield a table for each setting, with a row for each contender."""
    for setting, contenders in arms.items():
        model, transfer = setting.partition("-")[0], next(iter(contenders.values())).spread("transfer").median
        title = f"{model}: the transfer takes {transfer:.2g} times as long as the computation"
        yield TextTable.of(_columns(contenders.get("sequential")), contenders.values(), title=title)


def _columns(sequential: ContenderArm | None) -> Columns[ContenderArm]:
    return {
        "contender": lambda arm: arm.contender.schedule,
        "iteration": lambda arm: milliseconds(arm.iteration_s),
        "min .. max": lambda arm: span(arm.spread(TIME), milliseconds),
        "x sequential": lambda arm: "-" if sequential is None else shown(arm.against(sequential)),
        "x bound": lambda arm: shown(arm.iteration_s / arm.spread("bound_s").median),
        "x predicted": lambda arm: shown(arm.iteration_s / arm.predicted_s),
        "family": lambda arm: _schedule(arm).name,
        "threshold": lambda arm: f"{_schedule(arm).threshold * 4 / 1024:,.4g} KiB",
        "front": lambda arm: str(_schedule(arm).front) if _schedule(arm).family.has_front else "-",
        "searched": lambda arm: count(arm.spread("searched").median),
    }


def document(arm: ContenderArm) -> dict[str, object]:
    return {
        "setting": arm.contender.setting,
        "contender": arm.contender.schedule,
        "seeds": arm.seeds,
        "iteration_by_seed_s": arm.values(TIME),
        "iteration_s": arm.spread(TIME),
        "bound_s": arm.spread("bound_s"),
        "predicted_s": arm.spread("predicted_s"),
        "schedule": arm.column("schedule"),
        "searched": arm.column("searched"),
        "failures": arm.failures,
    }


def _schedule(arm: ContenderArm) -> PassSchedule:
    """Return the first seed's final schedule."""
    return PassSchedule.parse(arm.fact("schedule"))
