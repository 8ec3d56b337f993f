"""`kofn experiment protocols`: kofn's protocol beside SwitchML and others, in the same network."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from kofn.experiments.conduct import Choices, conduct, experiment_options, known
from kofn.experiments.findings import Findings
from kofn.experiments.matrix import CellResult, Scenario
from kofn.experiments.protocols.contenders import COLLECTIVES, EXAMPLES, SITUATIONS, ProtocolContender
from kofn.experiments.protocols.tables import LEGEND, document, own_columns, protocol_arms, tables, verdicts
from kofn.experiments.trials import read_trials
from kofn_common.config.plugins import look_in

QUESTION = "Which protocol for sums in the network does what under loss, a slow worker, few slots, and a death?"

SEEDS = 3

EXAMPLE = """
\b
Examples:
  kofn experiment protocols                                 every situation: twenty minutes
  kofn experiment protocols --scenario clean --scenario loss-0.01 --seeds 10
  kofn experiment protocols --protocol kofn --protocol mine:Mine      your own protocol (docs/howto/protocol.md)
  kofn experiment protocols --target bmv2

\b
Exit codes: 0 every run ended with identical replicas and every gradient conserved; 1 otherwise; 2 the command line is
wrong; 130 stopped by a signal. Claims are printed and do not count, nor does a job that ends with a killed worker.
"""


@click.command(epilog=EXAMPLE)
@click.option(
    "--protocol",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"{', '.join(COLLECTIVES)}, or module:Name; may be repeated.  [default: {', '.join(COLLECTIVES)}]",
)
@experiment_options(name="experiment-protocols", seeds=SEEDS)
def protocols(*, names: tuple[str, ...], choices: Choices) -> None:
    """Compare protocols that sum in the network: the same model, network, loss and stragglers.

    Four workers, 32 bits a value: time of an all-reduce, goodput under loss of 0.01 to 10 %, the cost of a slow
    worker, few slots, the switch's memory, bytes on a link, a worker's death. All protocols wait for all workers,
    except `fixed`: kofn's protocol with k = n - 1.
    """
    look_in(str(EXAMPLES))
    wanted = [ProtocolContender(name=name) for name in dict.fromkeys(names or COLLECTIVES)]

    def scenarios() -> list[Scenario]:
        situations = known(choices.chosen, SITUATIONS)
        return [
            contender.scenario(situation, choices.settings, choices.target)
            for situation in situations
            for contender in wanted
        ]

    conduct("protocols", choices, scenarios, find)


def find(results: Sequence[CellResult]) -> Findings:
    trials = read_trials("protocols", results, own_columns)
    arms = protocol_arms(trials)
    shown = list(tables(arms))

    def elements() -> Iterable[Any]:
        return [LEGEND, *shown]

    return Findings(
        question=QUESTION,
        trials=trials,
        tables=shown,
        legend=LEGEND,
        verdicts=list(verdicts(arms)),
        failures=[reason for protocol in arms for reason in protocol.problems()],
        document={"rows": list(map(document, arms))},
        elements=elements,
    )
