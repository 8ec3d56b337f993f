"""The text and JSON of `kofn experiment k`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, geometric_mean

from kofn.experiments.k.hindsight import MEAN, MEDIAN, NEVER, TIME, Hindsight, Ratios, Standing, constants, standings
from kofn.experiments.tables import Columns, TextTable, count, middle, milliseconds, seconds, shown, span

LEGEND = (
    "Times to the target accuracy over those of the best fixed rule and k in hindsight, seed by seed "
    f"(never: {NEVER:g} times the fastest). median, mean (geometric): over the seeds; others: mean against the rule "
    "and k that are the best of the other seeds; no: above 5 % in the median; NO: above 15 % in the mean. k = n / it: "
    "speed-up over waiting for all. least share: the least of the workers' shares of the sums, over an equal share. "
    "changes: changes of rule or k in a training; undone: changes back to a rule and k that were left shortly before."
)


def _ratio(standing: Standing, name: str) -> str:
    """Return a field of a standing's ratios, as text."""
    return shown(getattr(standing.ratios, name, None))


SCENARIO: Columns[Standing] = {
    "objective": lambda standing: standing.objective,
    "to target": lambda standing: seconds(standing.time.median),
    "min .. max": lambda standing: span(standing.time, seconds),
    "median": lambda standing: _ratio(standing, "median"),
    "mean": lambda standing: _ratio(standing, "mean"),
    "k = n / it": lambda standing: shown(standing.faster),
    "iterations": lambda standing: count(standing.spread("iterations_to_target").median),
    "measured": lambda standing: milliseconds(standing.spread("mean_iteration_s").median),
    "predicted": lambda standing: milliseconds(middle(standing.known_spread("predicted_iteration_s"))),
    "off by": lambda standing: shown(middle(standing.known_spread("prediction_error")), "{:+.1%}"),
    "least share": lambda standing: shown(standing.mean("least_share")),
    "owned": lambda standing: shown(middle(standing.known_spread("owned_accuracy")), "{:.1%}"),
    "changes": lambda standing: shown(standing.mean("changes"), "{:.1f}"),
    "undone": lambda standing: shown(standing.mean("undone"), "{:.1f}"),
    "reached": lambda standing: f"{standing.reached} of {len(standing.seeds)}",
}

WORLD: Columns[Standing] = {
    "world": lambda standing: standing.among.fact("world"),
    "n": lambda standing: f"{standing.among.workers}",
    "rate": lambda standing: f"{standing.among.fact('rate'):g}",
    "best fixed": lambda standing: standing.among.best.objective if standing.among.best else "-",
    "to target": lambda standing: seconds(standing.among.best.time.median) if standing.among.best else "never",
    "it takes": lambda standing: seconds(standing.time.median),
    "median": lambda standing: _ratio(standing, "median"),
    "mean": lambda standing: _ratio(standing, "mean"),
    "others": lambda standing: _ratio(standing, "others"),
    "": lambda standing: mark(standing.ratios),
    "k = n / it": lambda standing: shown(standing.faster),
    "ends with": lambda standing: standing.ends_with,
    "changes": lambda standing: shown(standing.mean("changes"), "{:.1f}"),
    "undone": lambda standing: shown(standing.mean("undone"), "{:.1f}"),
}


def mark(ratios: Ratios | None) -> str:
    if ratios is None:
        return "-"
    return "NO" if ratios.mean > MEAN else "no" if ratios.median > MEDIAN else "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """An objective's ratios in the scenarios with a number of workers and a learning rate; "all" stands for every
    number or rate."""

    workers: str
    rate: str
    scenarios: Sequence[Hindsight]
    ratios: Sequence[Ratios]

    @property
    def others(self) -> float | None:
        """The geometric mean of the scenarios' ratios to the best of the other seeds; None for single seeds."""
        known = [ratios.others for ratios in self.ratios if ratios.others is not None]
        return geometric_mean(known) if known else None

    @property
    def constant(self) -> tuple[str, float | None]:
        """The best constant rule and part of n, and the mean of its ratios."""
        means = constants(self.scenarios)
        best = min(means, key=lambda name: means[name], default="-")
        return best, means.get(best)


SUMMARY: Columns[Subset] = {
    "n": lambda part: part.workers,
    "rate": lambda part: part.rate,
    "scenarios": lambda part: f"{len(part.ratios)}",
    "median <= 1.05": lambda part: f"{fmean(ratios.median <= MEDIAN for ratios in part.ratios):.0%}",
    "mean <= 1.15": lambda part: f"{fmean(ratios.mean <= MEAN for ratios in part.ratios):.0%}",
    "mean": lambda part: f"{geometric_mean([ratios.mean for ratios in part.ratios]):.2f}",
    "worst": lambda part: f"{max(ratios.mean for ratios in part.ratios):.2f}",
    "others": lambda part: shown(part.others),
    "best that never changes": lambda part: part.constant[0],
    "it": lambda part: shown(part.constant[1]),
}


def scenario_table(found: Hindsight) -> TextTable:
    return TextTable.of(SCENARIO, found.standings, found.scenario)


def world_table(found: Sequence[Hindsight], objective: str) -> TextTable:
    """Return a row for each scenario, with the figures of an objective that chooses."""
    return TextTable.of(WORLD, standings(found, objective), objective)


def summary_table(found: Sequence[Hindsight], objective: str) -> TextTable:
    """Return a row for each number of workers with each rate, for each number with all rates, and for all scenarios."""
    parts = [part for part in _parts(found, objective) if part.ratios]
    return TextTable.of(SUMMARY, parts, f"{objective}, over the scenarios")


def _parts(found: Sequence[Hindsight], objective: str) -> Iterator[Subset]:
    def part(workers: str, rate: str, several: Sequence[Hindsight]) -> Subset:
        ratios = [ratios for standing in standings(several, objective) if (ratios := standing.ratios)]
        return Subset(workers=workers, rate=rate, scenarios=several, ratios=ratios)

    ordered = sorted(found, key=lambda hindsight: (hindsight.workers, hindsight.fact("rate")))
    for workers, of_workers in groupby(ordered, key=lambda hindsight: hindsight.workers):
        several = list(of_workers)
        for rate, of_rate in groupby(several, key=lambda hindsight: hindsight.fact("rate")):
            yield part(f"{workers}", f"{rate:g}", list(of_rate))
        yield part(f"{workers}", "all", several)
    yield part("all", "all", ordered)


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
    rows = [_document(standing) for standing in found.standings]
    facts = {name: found.fact(name) for name in FACTS}
    return facts | {"rows": rows, "best": found.best and found.best.objective}


def _document(standing: Standing) -> dict[str, object]:
    return {
        "objective": standing.objective,
        "trainings": len(standing.seeds),
        "reached": standing.reached,
        "times_s": standing.values(TIME),
        "time_s": standing.time,
        "iterations": standing.spread("iterations_to_target"),
        "best_accuracy": standing.spread("best_accuracy"),
        "owned_accuracy": standing.known_spread("owned_accuracy"),
        "least_share": standing.mean("least_share"),
        "measured_s": standing.spread("mean_iteration_s"),
        "predicted_s": standing.known_spread("predicted_iteration_s"),
        "error": standing.known_spread("prediction_error"),
        "changes": standing.mean("changes"),
        "undone": standing.mean("undone"),
        "ends_with": standing.ends_with,
        "failures": standing.failures,
        "against_best": standing.ratios,
    }
