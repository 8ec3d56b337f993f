"""The text and JSON of `kofn experiment k`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, geometric_mean

from kofn.experiments.k.hindsight import MEAN, MEDIAN, NEVER, TIME, Hindsight, Ratios, Standing, constants, standings
from kofn.experiments.tables import Columns, TextTable, count, middle, milliseconds, seconds, shown, span

LEGEND = (
    "Times to the target accuracy over those of the best fixed rule and k in hindsight, seed by seed "
    f"(never: {NEVER:g} times the fastest). median, mean (geometric): over the seeds; others: against the rule and k "
    "that are the best of the other seeds; no: above 5 % in the median; NO: above 15 % in the mean. k = n / it: how "
    "many times faster than waiting for all. least share: of the sums, in times of an equal one. changes: of rule or k "
    "in a training; undone: back to what was left a short time before."
)


def _ratio(one: Standing, name: str) -> str:
    """Return a field of its ratios."""
    return shown(getattr(one.ratios, name, None))


SCENARIO: Columns[Standing] = {
    "objective": lambda one: one.objective,
    "to target": lambda one: seconds(one.time.median),
    "min .. max": lambda one: span(one.time, seconds),
    "median": lambda one: _ratio(one, "median"),
    "mean": lambda one: _ratio(one, "mean"),
    "k = n / it": lambda one: shown(one.faster),
    "iterations": lambda one: count(one.spread("iterations_to_target").median),
    "measured": lambda one: milliseconds(one.spread("mean_iteration_s").median),
    "predicted": lambda one: milliseconds(middle(one.known_spread("predicted_iteration_s"))),
    "off by": lambda one: shown(middle(one.known_spread("prediction_error")), "{:+.1%}"),
    "least share": lambda one: shown(one.mean("least_share")),
    "owned": lambda one: shown(middle(one.known_spread("owned_accuracy")), "{:.1%}"),
    "changes": lambda one: shown(one.mean("changes"), "{:.1f}"),
    "undone": lambda one: shown(one.mean("undone"), "{:.1f}"),
    "reached": lambda one: f"{one.reached} of {len(one.seeds)}",
}

WORLD: Columns[Standing] = {
    "world": lambda one: one.among.fact("world"),
    "n": lambda one: f"{one.among.workers}",
    "rate": lambda one: f"{one.among.fact('rate'):g}",
    "best fixed": lambda one: one.among.best.objective if one.among.best else "-",
    "to target": lambda one: seconds(one.among.best.time.median) if one.among.best else "never",
    "it takes": lambda one: seconds(one.time.median),
    "median": lambda one: _ratio(one, "median"),
    "mean": lambda one: _ratio(one, "mean"),
    "others": lambda one: _ratio(one, "others"),
    "": lambda one: mark(one.ratios),
    "k = n / it": lambda one: shown(one.faster),
    "ends with": lambda one: one.ends_with,
    "changes": lambda one: shown(one.mean("changes"), "{:.1f}"),
    "undone": lambda one: shown(one.mean("undone"), "{:.1f}"),
}


def mark(ratios: Ratios | None) -> str:
    if ratios is None:
        return "-"
    return "NO" if ratios.mean > MEAN else "no" if ratios.median > MEDIAN else "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Scenarios with one number of workers, at one learning rate, or of all: an objective's ratios in them."""

    workers: str
    rate: str
    scenarios: Sequence[Hindsight]
    ratios: Sequence[Ratios]

    @property
    def others(self) -> float | None:
        """The geometric mean over the scenarios; None for single seeds."""
        known = [one.others for one in self.ratios if one.others is not None]
        return geometric_mean(known) if known else None

    @property
    def constant(self) -> tuple[str, float | None]:
        """The best constant rule and part of n, and its mean."""
        means = constants(self.scenarios)
        best = min(means, key=lambda name: means[name], default="-")
        return best, means.get(best)


SUMMARY: Columns[Subset] = {
    "n": lambda part: part.workers,
    "rate": lambda part: part.rate,
    "scenarios": lambda part: f"{len(part.ratios)}",
    "median <= 1.05": lambda part: f"{fmean(one.median <= MEDIAN for one in part.ratios):.0%}",
    "mean <= 1.15": lambda part: f"{fmean(one.mean <= MEAN for one in part.ratios):.0%}",
    "mean": lambda part: f"{geometric_mean([one.mean for one in part.ratios]):.2f}",
    "worst": lambda part: f"{max(one.mean for one in part.ratios):.2f}",
    "others": lambda part: shown(part.others),
    "best that never changes": lambda part: part.constant[0],
    "it": lambda part: shown(part.constant[1]),
}


def scenario_table(found: Hindsight) -> TextTable:
    return TextTable.of(SCENARIO, found.standings, found.scenario)


def world_table(found: Sequence[Hindsight], objective: str) -> TextTable:
    """Return a row for each scenario, with a choosing objective's figures."""
    return TextTable.of(WORLD, standings(found, objective), objective)


def summary_table(found: Sequence[Hindsight], objective: str) -> TextTable:
    """Return a row for each number of workers and learning rate, one for each number, and one for all."""
    parts = [part for part in _parts(found, objective) if part.ratios]
    return TextTable.of(SUMMARY, parts, f"{objective}, over the scenarios")


def _parts(found: Sequence[Hindsight], objective: str) -> Iterator[Subset]:
    def part(workers: str, rate: str, several: Sequence[Hindsight]) -> Subset:
        ratios = [ratios for one in standings(several, objective) if (ratios := one.ratios)]
        return Subset(workers=workers, rate=rate, scenarios=several, ratios=ratios)

    by_rate = sorted(found, key=lambda one: (one.workers, one.fact("rate")))
    for workers, of in groupby(by_rate, key=lambda one: one.workers):
        several = list(of)
        for rate, at in groupby(several, key=lambda one: one.fact("rate")):
            yield part(f"{workers}", f"{rate:g}", list(at))
        yield part(f"{workers}", "all", several)
    yield part("all", "all", by_rate)


def constants_table(found: Sequence[Hindsight]) -> TextTable:
    """Return constant rules and parts of n, the best first."""
    means = sorted(constants(found).items(), key=lambda item: item[1])
    columns: Columns[tuple[str, float]] = {
        "rule:k": lambda item: item[0],
        "mean over the scenarios": lambda item: f"{item[1]:.2f}",
    }
    return TextTable.of(columns, means)


FACTS = ("scenario", "world", "kind", "workers", "rate", "target")
"""Facts of a scenario."""


def scenario_document(found: Hindsight) -> dict[str, object]:
    rows = [_document(one) for one in found.standings]
    facts = {name: found.fact(name) for name in FACTS}
    return facts | {"rows": rows, "best": found.best and found.best.objective}


def _document(one: Standing) -> dict[str, object]:
    return {
        "objective": one.objective,
        "trainings": len(one.seeds),
        "reached": one.reached,
        "times_s": one.values(TIME),
        "time_s": one.time,
        "iterations": one.spread("iterations_to_target"),
        "best_accuracy": one.spread("best_accuracy"),
        "owned_accuracy": one.known_spread("owned_accuracy"),
        "least_share": one.mean("least_share"),
        "measured_s": one.spread("mean_iteration_s"),
        "predicted_s": one.known_spread("predicted_iteration_s"),
        "error": one.known_spread("prediction_error"),
        "changes": one.mean("changes"),
        "undone": one.mean("undone"),
        "ends_with": one.ends_with,
        "failures": one.failures,
        "against_best": one.ratios,
    }
