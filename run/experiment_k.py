"""`kofn experiment k`: what the choice of k is worth, on the real system, over several seeds.

Runs a matrix of scenarios and seeds (run/matrix.py), says what comes of it as tables, claims and a report.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from run.conduct import Choices, Told, conduct, experiment_options, known
from run.evidence import Findings, find_row
from run.evidence_table import LEGEND, table
from run.matrix import Result, Scenario, by_scenario, names
from run.summary import PassSummary
from run.verdicts import verdicts

SEEDS = 5
"""How often each scenario is run, where the command line does not say."""

EXAMPLES = """
\b
Examples:
  kofn experiment k --out runs/k                     everything: hours; repeat it to go on after Ctrl-C
  kofn experiment k --scenario one-slow --seeds 1    a few minutes
  kofn experiment k --simulate                       in virtual time: minutes
  kofn experiment k --scenario graded --objective fixed:3 --objective round
  kofn experiment k --simulate --set model.learning_rate=0.05
  kofn experiment k --out runs/k --report-only       tables, claims and report of what is there
  kofn run run/experiments/graded.toml               one scenario once, with the live table and a report

\b
Exit codes: 0 every training reached its target (where a scenario asks for that), with identical replicas and every
gradient conserved; 1 not so; 2 the command line is wrong; 130 stopped by a signal. Claims do not count: they are said.
"""


@click.command(epilog=EXAMPLES)
@experiment_options(name="experiment-k", seeds=SEEDS)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    help="May be repeated: fixed:K, all or one that chooses k.  [default: each scenario's run.passes]",
)
def k(*, choices: Choices, objectives: tuple[str, ...]) -> None:
    """Is the chosen k the right one? Time to the target accuracy with every fixed k and with those that choose k.

    Each scenario of run/experiments/ is run with several seeds, all objectives on the same seed and blocking events.
    """

    def scenarios() -> list[Scenario]:
        loaded = [Scenario.load(name, choices.settings) for name in known(choices.chosen, names())]
        return [scenario.overridden(target=choices.target, objectives=objectives) for scenario in loaded]

    conduct("k", choices, scenarios, tell)


def tell(results: Sequence[Result]) -> Told:
    """What finished runs show."""
    found = findings(results)
    said = verdicts(found)

    def write_report(folder: Path, failures: Sequence[str]) -> Path:
        from run.experiment_report import write_k  # noqa: PLC0415  # matplotlib takes half a second

        return write_k(folder, found, said, failures, results)

    return Told(
        tables=[table(one) for one in found],
        legend=LEGEND,
        verdicts=said,
        failures=[reason for one in found for reason in one.failures()],
        document={"scenarios": [asdict(one) for one in found]},
        write_report=write_report,
    )


def findings(results: Sequence[Result]) -> list[Findings]:
    """Scenario by scenario, in the order of the results, of which each has passes."""
    return [_findings(several) for several in by_scenario(results).values()]


def _findings(results: Sequence[Result]) -> Findings:
    """One scenario's."""
    scenario = results[0].cell.scenario
    passes: dict[str, list[PassSummary]] = defaultdict(list)
    for entry in (entry for result in results for entry in result.passes):
        passes[entry.objective].append(entry)
    return Findings(
        scenario=scenario.name,
        shifting=scenario.shifting,
        stationary=scenario.stationary,
        workers=scenario.config.job.workers,
        target_accuracy=scenario.config.run.target_accuracy,
        may_miss=scenario.may_miss,
        late=scenario.config.policy.late_gradient,
        rows=tuple(find_row(objective, several) for objective, several in passes.items()),
    )
