"""The columns of `kofn experiment k` in the table of trials."""

from collections.abc import Sequence
from itertools import pairwise

from kofn.experiments.k.worlds import WORLDS, world_of
from kofn.experiments.trials import FinishedTrial, Row
from kofn.report.in_force import InForce
from kofn.report.summary import TrialSummary

SOON = 80
"""A change that is undone within this number of iterations was a mistake."""


def own_columns(trial: FinishedTrial) -> Row:
    """Return this experiment's columns."""
    world = world_of(trial.cell.scenario)
    facts = {"world": world, "kind": WORLDS[world].kind, "rate": trial.config.model.learning_rate}
    return facts | choice_columns(trial.summary)


def choice_columns(summary: TrialSummary) -> dict[str, object]:
    """Return the columns about the choice of rule and k.

    `prediction_error` is (predicted - measured) / measured. `least_share` is the least of the workers' shares of the
    sums, divided by an equal share. `changes` counts the changes of rule or k, and `undone` counts the changes that
    were undone within SOON iterations. `ends_with` is the last rule and k.
    """
    predicted_s, shares, in_force = summary.predicted_iteration_s, summary.share_by_worker, summary.in_force
    return {
        "prediction_error": predicted_s / summary.mean_iteration_s - 1 if predicted_s else None,
        "least_share": min(shares) * len(shares) if shares else None,
        "changes": max(len(in_force) - 1, 0),
        "undone": _undone(in_force),
        "ends_with": f"{in_force[-1]}" if in_force else None,
    }


def _undone(in_force: Sequence[InForce]) -> int:
    """Return how often a rule and k returned soon after they had been left."""
    count = 0
    for at, now in enumerate(in_force):
        earlier = pairwise(in_force[: at + 1])
        count += any(left.what == now.what and now.iteration - after.iteration <= SOON for left, after in earlier)
    return count
