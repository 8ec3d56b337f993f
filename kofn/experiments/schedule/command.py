"""`kofn experiment schedule`: the gain of sending a gradient's pieces in another order, on slow links."""

from collections.abc import Sequence

import click

from kofn.experiments.claims import judge
from kofn.experiments.conduct import Choices, conduct, experiment_options, known
from kofn.experiments.findings import Findings
from kofn.experiments.matrix import CellResult, Scenario
from kofn.experiments.schedule.arms import contender_arms
from kofn.experiments.schedule.claims import CLAIMS, of_accelerators
from kofn.experiments.schedule.columns import own_columns
from kofn.experiments.schedule.contenders import ALL
from kofn.experiments.schedule.tables import LEGEND, document, tables
from kofn.experiments.trials import read_trials

QUESTION = "What do order and overlap of computation and transfers gain?"

EXAMPLES = """
\b
Examples:
  kofn experiment schedule                                     everything: two hours
  kofn experiment schedule --scenario equal-1-auto --scenario equal-1-buckets-1mb --scenario equal-1-sequential
  kofn experiment schedule --out runs/schedule --report-only   tables, claims and report of the finished runs

\b
Exit codes: 0 all replicas were identical and every gradient was conserved; 1 otherwise; 2 the command line is wrong;
130 stopped by a signal. Claims are printed and do not count.
"""


@click.command(epilog=EXAMPLES)
@experiment_options(name="experiment-schedule", seeds=1)
def schedule(*, choices: Choices) -> None:
    """Measure the gain of order and overlap: iteration times with every schedule.

    Four workers, k = n, layers that an accelerator would compute (300 ms an iteration), and links on which the transfer
    takes 0.5, 1 or 2 times as long. The models: eight equal layers; computation in front and parameters behind (VGG); a
    large embedding in front (a transformer); a perceptron. The schedules: no overlap, PyTorch's buckets, first in first
    out, priorities, the source's search, and the default's search. No claim is made about "real", a perceptron that is
    really computed.
    """

    def scenarios() -> list[Scenario]:
        return [ALL[name].scenario(choices.settings, choices.target) for name in known(choices.chosen, list(ALL))]

    conduct("schedule", choices, scenarios, find)


def find(results: Sequence[CellResult]) -> Findings:
    trials = read_trials("schedule", results, own_columns)
    arms = contender_arms(trials)
    shown = list(tables(arms))
    every = [arm for contenders in arms.values() for arm in contenders.values()]
    return Findings(
        question=QUESTION,
        trials=trials,
        tables=shown,
        legend=LEGEND,
        verdicts=judge(CLAIMS, of_accelerators(arms)),
        failures=[f"{arm.contender.name}: {why}" for arm in every for why in arm.failures],
        document={"rows": list(map(document, every))},
        elements=lambda: [LEGEND, *shown],
    )
