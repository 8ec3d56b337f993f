"""What the rows of a summary's table mean."""

from collections.abc import Iterable

EXPLAINED = {
    "time to": "From the first worker's first iteration to the end of the iteration after which a replica had the"
    " target; never: it did not come to it; diverged: its parameters grew beyond use, and the trial was ended.",
    "baseline / this": "The time of the trial marked as baseline over this trial's. More than 1: this one was faster.",
    "one worker alone / this": "The time of one worker that trained alone, on all of the data, over this trial's.",
    "iterations to target": "How many iterations that took.",
    "changed in mid-run": "What an event of the configuration changed while the trial went on, or an operator (by"
    " hand). A trial that was changed by hand is not compared.",
    "iterations in all": "The last one that a replica finished.",
    "median iteration time": "From one iteration's first finish to the next one's.",
    "mean iteration time": "From the first start to the last first finish, over the iterations between.",
    "compute/code/net/wait/step": "Shares of an iteration's time, means over the workers: gradient and blocking;"
    " encode, sum and decode; send and receive; waiting for the others; update and evaluation.",
    "as predicted": "What the controller predicted of the mean iteration time, with the k in force.",
    "k used (iterations)": "The k that closed an iteration, and in how many iterations.",
    "rule:k (from iteration)": "Rule for late gradients and k as they came into force, first and last.",
    "late contributions": "Of all workers (and of each): iterations that closed without it.",
    "share of the sums": "Of the gradients in all sums, by worker.",
    "age when contributed": "Iterations that had ended since a gradient was begun: means by worker, and the most.",
    "discarded for age": "Gradients, by weight, that count less as they were late: of all workers (and of each).",
    "pending in the end": "Gradients, by weight, that no sum holds yet, by worker; for how many iterations the oldest"
    " is late.",
    "STARVED": "Workers of which many gradients in a row came into no sum.",
    "sent": "By all workers: payload of UDP and TCP, and packets of kofn's protocol.",
    "received": "By all workers, likewise.",
    "links, to/from the switch": "Ethernet frames on all links together, as the kernel counted them.",
    "memory of a worker": "Of arrays that the worker that keeps most has between two iterations (parameters, gradients,"
    " the optimizer's state, residuals: what encoding left over, or came too late; the rest of the ledger).",
    "gradients sent": "Values in contributions, without headers; their share of float32's bytes, and what was planned.",
    "compression error": "L2 norm of what encoding left over, mean over iterations and workers.",
    "residual": "L2 norm of all that was pending after an iteration, likewise.",
    "narrower lanes refused": "Lanes that the ratio asked for and that would have left over too much.",
    "lost to rounded residuals": "L2 norm of what an iteration discarded so that residuals are kept in fewer bits.",
    "steps too large": "Of votes: share of blocks whose step is at least twice the mean magnitude, so that what is left"
    " over does not shrink.",
    "elements that did not fit": "Share of the gradients' elements other than 0 that were rounded to 0 in the ledger"
    " (below 2^-41) or in lanes of 32 bits, or that these clipped; what the ledger has of them comes later.",
    "retransmissions": "Packets that workers sent again.",
    "corrupted packets dropped": "Packets whose checksum was wrong.",
    "peer fetches": "How often workers asked peers for results that the switch had forgotten.",
    "recoveries": "Processes started again; workers that attached again; losses of the switch's slots.",
    "longest stall": "The longest time in which no worker finished an iteration.",
    "replicas bit-identical": "Whether all workers' parameters had the same bits after every iteration.",
    "gradients conserved": "Whether every gradient is in sums, pending or discarded exactly, and no sum holds more.",
}
"""By label; "time to" has the target in its label."""


def explained(labels: Iterable[str]) -> list[tuple[str, str]]:
    """Each label with its meaning."""
    return [(label, EXPLAINED["time to" if label.startswith("time to") else label]) for label in labels]
