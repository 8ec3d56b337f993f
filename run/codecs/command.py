"""`kofn experiment codecs`: every codec's way to the target accuracy, and links that slow down in mid-iteration."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from run.codecs.evidence import Row
from run.codecs.table import CODEC_HEADINGS, LEGEND, LINK_HEADINGS, codec_cells, link_cells
from run.codecs.trainings import read_training
from run.codecs.variants import DIGITS, LINKS, VARIANTS
from run.codecs.verdicts import verdicts
from run.conduct import Choices, Told, conduct, experiment_options, known
from run.matrix import Result, Scenario, by_scenario
from run.table import plain_table

SEEDS = 3
"""How often each variant is run, where the command line does not say."""

EXAMPLES = """
\b
Examples:
  kofn experiment codecs                               everything: minutes
  kofn experiment codecs --simulate                    in virtual time
  kofn experiment codecs --scenario int32 --scenario int8 --seeds 5
  kofn experiment codecs --set compress.rounding=stochastic --out runs/stochastic
  kofn experiment codecs --out runs/codecs --report-only   tables, claims and report of what is there

\b
Exit codes: 0 every training with error feedback reached its target, and all with identical replicas and every gradient
conserved; 1 not so; 2 the command line is wrong; 130 stopped by a signal. Claims do not count: they are said.
"""


@click.command(epilog=EXAMPLES)
@experiment_options(name="experiment-codecs", seeds=SEEDS)
def codecs(*, choices: Choices) -> None:
    """What does compression cost, and what is it worth? Iterations to the target accuracy with every codec.

    Four workers, k = n: 32-, 16-, 8- and 4-bit lanes, one bit, a selection of blocks and lanes by ratio, with error
    feedback and without. Then the link of one worker, or of all, drops to a quarter in mid-iteration: iteration times
    uncompressed and with the adaptive ratio.
    """

    def scenarios() -> list[Scenario]:
        names = known(choices.chosen, list(VARIANTS))
        return [VARIANTS[name].scenario(choices.settings, choices.target) for name in names]

    conduct("codecs", choices, scenarios, tell)


def tell(results: Sequence[Result]) -> Told:
    """What finished runs show."""
    rows = find_rows(results)
    digits, links = ([row for row in rows if row.variant in part] for part in (DIGITS, LINKS))
    parts = [(CODEC_HEADINGS, codec_cells(digits)), (LINK_HEADINGS, link_cells(links))]
    said = verdicts(rows)

    def write_report(folder: Path, failures: Sequence[str]) -> Path:
        from run.codecs.report import write_codecs  # noqa: PLC0415  # matplotlib takes half a second

        return write_codecs(folder, parts, said, failures, results)

    return Told(
        tables=[plain_table(headings, cells) for headings, cells in parts if cells],
        legend=LEGEND,
        verdicts=said,
        failures=[reason for row in rows for reason in row.problems()],
        document={"rows": [asdict(row) for row in rows]},
        write_report=write_report,
    )


def find_rows(results: Sequence[Result]) -> list[Row]:
    """A row a variant, in their own order."""
    by_name = by_scenario(results)
    return [
        Row.of(
            variant,
            [read_training(result) for result in by_name[name]],
            by_name[name][0].cell.config.run.target_accuracy,
        )
        for name, variant in VARIANTS.items()
        if name in by_name
    ]
