"""Explanations of the rows of a summary's table."""

from collections.abc import Iterable

from kofn_common.results.account import STARVED

LOGGED = ", last"
"""The end of a logged value's label."""

EXPLAINED = {
    "time to": "From the first worker's first iteration to the end of the iteration after which a replica had reached"
    " the target; never: not reached; diverged: the parameters were too large or not finite, and the trial was ended.",
    "baseline / this": "The time to the target of the trial marked as baseline, divided by this trial's. More than 1:"
    " this trial was faster.",
    "one worker alone / this": "The time to the target of one worker that trained alone, on all of the data, divided by"
    " this trial's.",
    "iterations to target": "The iteration after which a replica had reached the target.",
    "changed in mid-run": "Changes during the trial by an event of the configuration, or by an operator (by hand). A"
    " trial that was changed by hand is not compared.",
    "iterations in all": "The last iteration that a replica finished.",
    "median iteration time": "From an iteration's first finish to the next iteration's first finish.",
    "mean iteration time": "From the first worker's start to the last iteration's first finish, divided by the number"
    " of iterations.",
    "compute/code/net/wait/step": "Shares of an iteration's time, means over the workers: gradient and blocking;"
    " encode, sum and decode; send and receive; waiting for the others; update and evaluation.",
    "as predicted": "The controller's prediction of the mean iteration time, with the k in force.",
    "k used (iterations)": "The k that closed an iteration, and in how many iterations.",
    "rule:k (from iteration)": "The first and the last rule for late gradients and k that came into force.",
    "late gradients": "Gradients whose iteration ended before they were ready: all workers together (and by worker).",
    "share of the sums": "Each worker's share of the gradients in all sums.",
    "age when contributed": "Iterations that had ended since a gradient began: each worker's mean, and the largest.",
    "discarded for age": "Weight that late gradients lost, as a number of gradients: all workers together (and by"
    " worker).",
    "pending in the end": "Gradients, by weight, that no sum holds yet, by worker; and for how many iterations the"
    " oldest gradient has been late.",
    "STARVED": f"Workers with {STARVED} or more gradients in a row that are in no sum, and how many.",
    "sent": "By all workers: payload of UDP and TCP, and packets of a protocol through the switch.",
    "received": "By all workers: payload of UDP and TCP, and packets of a protocol through the switch.",
    "links, to/from the switch": "Ethernet frames on all links together, as the kernel counted them.",
    "counted by the switch": "Packets of all jobs by the names of the data plane, those above 0.",
    "refused by the switch, from": "Packets that the switch refused, by the host and port that sent them. "
    "`kofn status` has them by reason.",
    "memory of a worker": "Arrays between two iterations, of the worker that keeps most (parameters, gradients, state"
    " of the optimizer, residuals: left over by encoding or too late; rest of the ledger).",
    "gradients sent": "Values in contributions, without headers; their share of float32's bytes, and the plan.",
    "compression error": "L2 norm of the part that encoding left over, mean over iterations and workers.",
    "residual": "L2 norm of the values pending after an iteration, mean over iterations and workers.",
    "narrower lanes refused": "Lanes that the ratio asked for, and whose error would have been too large.",
    "lost to rounded residuals": "L2 norm of the values that an iteration discarded to keep residuals in fewer bits.",
    "quantisation steps too large": "For votes: share of blocks whose quantisation step is at least twice the mean"
    " magnitude. The residual of such blocks does not shrink.",
    "elements that did not fit": "Share of the gradients' elements other than 0 that were rounded to 0 in the ledger"
    " (below 2^-41) or in lanes of 32 bits, or that such lanes clipped; the rest stays in the ledger and is sent"
    " later.",
    LOGGED: "The latest value that the script has logged, as the mean over the workers.",
    "retransmissions": "Packets that workers retransmitted.",
    "corrupted packets dropped": "Packets whose checksum was wrong.",
    "peer fetches": "Requests of workers to their peers for results that the switch had forgotten.",
    "recoveries": "Restarts of processes; rejoins of workers; losses of the switch's slots.",
    "longest stall": "The longest time in which no worker finished an iteration.",
    "replicas bit-identical": "Whether all workers' parameters had the same bits after every iteration.",
    "gradients conserved": "Whether every gradient is exactly in sums, pending or discarded, and no sum holds more.",
}
"""The explanation of a row, by its label without the target of "time to" and without the name of a logged value."""


def explained(labels: Iterable[str]) -> list[tuple[str, str]]:
    """Return each label with its meaning."""
    return [(label, EXPLAINED[_kind(label)]) for label in labels]


def _kind(label: str) -> str:
    """Return the key of a label in EXPLAINED: some labels contain a target, or the name of a logged value."""
    if label.startswith("time to"):
        return "time to"
    return LOGGED if label.endswith(LOGGED) else label
