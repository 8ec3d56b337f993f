"""`kofn experiment codecs`: the iterations of every codec to the target, and links that slow down."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from kofn.experiments.claims import judge
from kofn.experiments.codecs.arms import variant_arms
from kofn.experiments.codecs.claims import CLAIMS
from kofn.experiments.codecs.columns import own_columns
from kofn.experiments.codecs.tables import LEGEND, document, tables
from kofn.experiments.codecs.variants import VARIANTS
from kofn.experiments.conduct import Choices, conduct, experiment_options, known
from kofn.experiments.findings import Findings
from kofn.experiments.matrix import CellResult, Scenario
from kofn.experiments.trials import read_trials

QUESTION = "What does compression cost, and what does it gain?"

SEEDS = 3
"""The seeds of each variant, by default."""

EXAMPLES = """
\b
Examples:
  kofn experiment codecs                               everything: minutes
  kofn experiment codecs --simulate                    in virtual time
  kofn experiment codecs --scenario int32 --scenario int8 --seeds 5
  kofn experiment codecs --set compress.rounding=stochastic --out runs/stochastic
  kofn experiment codecs --out runs/codecs --report-only   tables, claims and report of the finished runs

\b
Exit codes: 0 every training with error feedback reached its target, and every training had identical replicas and
conserved gradients; 1 otherwise; 2 the command line is wrong; 130 stopped by a signal. Claims are printed and do not
count.
"""


@click.command(epilog=EXAMPLES)
@experiment_options(name="experiment-codecs", seeds=SEEDS)
def codecs(*, choices: Choices) -> None:
    """Measure the cost and the gain of compression: iterations to the target accuracy with every codec.

    Four workers, k = n: 32-, 16-, 8- and 4-bit lanes, one bit, a selection of blocks and lanes by ratio, with error
    feedback and without. Then the link of one worker, or all links, drop to a quarter of their rate during an
    iteration: the iteration times are compared without compression and with the adaptive ratio.
    """

    def scenarios() -> list[Scenario]:
        names = known(choices.chosen, list(VARIANTS))
        return [VARIANTS[name].scenario(choices.settings, choices.target) for name in names]

    conduct("codecs", choices, scenarios, find)


def find(results: Sequence[CellResult]) -> Findings:
    trials = read_trials("codecs", results, own_columns)
    arms = variant_arms(trials)
    shown = list(tables(arms))

    def elements() -> Iterable[Any]:
        from kofn.experiments.codecs import report  # noqa: PLC0415  # matplotlib takes half a second

        return report.elements(shown, results)

    return Findings(
        question=QUESTION,
        trials=trials,
        tables=shown,
        legend=LEGEND,
        verdicts=judge(CLAIMS, arms),
        failures=[reason for arm in arms.values() for reason in arm.problems()],
        document={"rows": list(map(document, arms.values()))},
        elements=elements,
    )
