"""A Status message as text for the command line. This module makes no calls and knows no arguments."""

import io
from collections.abc import Sequence
from typing import TextIO

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kofn.report.table import make_console
from kofn_common.results.account import STARVED
from kofn_common.results.ranks import name_workers
from kofn_common.rpc import kofn_pb2 as pb

CHANGES_SHOWN = 5

OLD = 50
"""The age in iterations from which on the measurement of a k is marked as old."""

OTHER_LINES = 10
"""The lines of a status besides the lines of workers and changes."""

WIDE = ("samples", "in a row", "pending", "age", "reports", "arrivals")
"""Columns for which a terminal of 80 columns has no space."""

DISAGREEING = 0.05
"""Share of a worker's iterations in which its report and the switch's digests may differ without a remark."""

ADMITTED = frozenset(
    (
        *("ADMITTED", "OPENED", "ADDED", "CLOSED", "LATE", "STALE", "FORMAT_MISMATCH", "DUPLICATE", "NOT_READY"),
        *("FULL", "OVERLAP", "ASKED", "SENT", "PASSED", "HEARD", "IGNORED"),
    )
)
"""Verdicts (p4src/metadata.p4) on packets from admitted workers and switches; other verdicts are reasons for drops."""


def line(status: pb.Status) -> str:
    """Return the status in a line, for logs."""
    lambdas = " ".join(f"{1e3 * worker.lambda_s:.1f}" for worker in status.worker)
    return (
        f"iteration {status.iteration}: k = {status.k} of {status.live} live ({status.objective}), "
        f"lambda [{lambdas}] ms" + (f"; waiting: {status.waiting}" if status.waiting else "")
    )


def output(file: TextIO, rendered: RenderableType) -> None:
    """Print to a terminal, or to a file without the padding of tables."""
    if file.isatty():
        make_console(file=file).print(rendered)
        return
    plain = io.StringIO()
    make_console(file=plain).print(rendered)
    file.writelines(f"{line.rstrip()}\n" for line in plain.getvalue().splitlines())


def status(answer: pb.Status, *, wide: bool = False, lines: int | None = None) -> RenderableType:
    """Return the job at a glance. With `lines`, leave out workers so that the text fits into this number of lines, if
    possible."""
    parts: list[RenderableType] = [_headline(answer), _switch(answer)]
    changes = [_changes(answer)] if answer.changes else []
    most = None if lines is None else max(lines - OTHER_LINES - len(answer.changes[-CHANGES_SHOWN:]), 1)
    return Group(*parts, lambdas(answer, wide=wide, most=most), *changes)


def lambdas(answer: pb.Status, *, wide: bool = False, most: int | None = None) -> RenderableType:
    """Return a row for each worker, within 80 columns unless `wide`, a line for each slow link, and the disagreements
    of reports and switch.

    If there are more workers than `most`, the workers with the largest lambda have rows, and a line names the others.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("worker", "lambda ms", "95 % interval", "var/mean", "late", "share")
    for name in (*columns, *(WIDE if wide else ())):
        table.add_column(name, justify="right")
    table.add_column("")
    slowest = sorted(answer.worker, key=lambda worker: -worker.lambda_s)[:most]
    slowest.sort(key=lambda worker: worker.rank)
    for worker in slowest:
        table.add_row(*_numbers(worker), *(_counts(worker) if wide else ()), _remark(worker))
    disagreements = [_disagreement(worker) for worker in slowest if _matters(worker, wide)]
    links = [Text(f"worker {worker.rank}: {worker.link}") for worker in slowest if worker.link]
    return Group(_model(answer), table, *_left_out(answer, slowest), *links, *disagreements)


def _left_out(answer: pb.Status, slowest: Sequence[pb.WorkerStatus]) -> list[Text]:
    """Name the workers without a row."""
    if not (others := {worker.rank for worker in answer.worker} - {worker.rank for worker in slowest}):
        return []
    least = min(worker.lambda_s for worker in slowest)
    return [Text(f"{name_workers(others)}: lambda {_milliseconds(least)} ms at most; `kofn lambda` shows all")]


def k_choice(answer: pb.Status) -> RenderableType:
    """Return every k with its forecast and cost, and the reason for the present k."""
    if not answer.expected:
        return Text(f"k = {answer.k}: still measuring (objective {answer.objective}); no forecast yet")
    table = Table(box=None, pad_edge=False, header_style="bold")
    own = _has_costs(answer)
    worth = answer.objective == "progress"
    for name in ("k", "E_k[T]", "x n/k", "predicted", "measured", *["worth"] * worth, *["cost"] * own):
        table.add_column(name, justify="right")
    table.add_column("")
    best = min(answer.expected, key=lambda entry: (bool(entry.excluded), entry.objective_cost if own else entry.cost)).k
    for entry in answer.expected:
        times_s = (entry.iteration_s, entry.cost, entry.predicted_s, entry.measured_s)
        times = (_milliseconds(time_s) if time_s else "-" for time_s in times_s)
        costs = [_milliseconds(entry.objective_cost) if worth else f"{entry.objective_cost:.4g}"] * own
        table.add_row(
            str(entry.k), *times, *[f"{entry.worth:.2f}"] * worth, *costs, _mark(entry, best, answer.iteration)
        )
    return Group(_model(answer), table, Text(_legend(answer)), Text(reason(answer, best)), *_force(answer))


def _force(answer: pb.Status) -> list[Text]:
    """Return a line about the k in the switch, if a switch has confirmed a k."""
    return [Text(in_switch(answer))] if answer.switch_k else []


def _has_costs(answer: pb.Status) -> bool:
    """Return whether the objective has meaningful costs that differ from the column x n/k."""
    return answer.objective not in ("throughput", "all") and not answer.objective.startswith("fixed:")


def _legend(answer: pb.Status) -> str:
    """Explain the columns, and name the column that decides."""
    overhead = f"{_milliseconds(answer.overhead_s)} ms of " if answer.overhead_s else ""
    deciding = "decides" if answer.objective == "throughput" else "decides under objective 'throughput'"
    return (
        f"Times in ms. E_k[T]: all workers start together. x n/k: E_k[T] for one round of all blocks; it {deciding}. "
        "predicted: late workers first finish their gradients, unless they give them up. "
        f"measured: from iteration to iteration, under the rule in force, with {overhead}transfer and step."
        + (_worth(answer) if answer.objective == "progress" else "")
        + (f" cost: by objective {answer.objective!r}; it decides." if _has_costs(answer) else "")
    )


def _worth(answer: pb.Status) -> str:
    """Return the values behind the worth of an iteration."""
    words = " worth: the progress of an iteration, 1 with exact and fresh gradients"
    if not answer.noise_scale:
        return f"{words}; still measuring."
    left = ", ".join(f"{100 * answer.alignment[age]:.0f} % after {age}" for age in (1, 2, 4, 8))
    return f"{words}. Noise scale {answer.noise_scale:.1f} batches; a gradient keeps {left} iterations."


def reason(answer: pb.Status, best: int) -> str:
    """Return the reason for the k in force, in a sentence or two."""
    if answer.objective == "all":
        why = f"k = {answer.k}: objective 'all' waits for every live worker.{_cheaper(answer, best)}"
    elif answer.objective.startswith("fixed:"):
        bound = "" if answer.objective == f"fixed:{answer.k}" else f", as far as {answer.live} live workers allow"
        why = f"k = {answer.k}: set by you (objective '{answer.objective}'){bound}.{_cheaper(answer, best)}"
    else:
        why = f"k = {answer.k}: {_chosen(answer, best)}."
    if not answer.changes:
        return f"{why} It has not been changed yet."
    last = answer.changes[-1]
    return f"{why} Last change: iteration {last.iteration}, {_change(last)}."


def _chosen(answer: pb.Status, best: int) -> str:
    """Return the reason why an objective with costs keeps the present k."""
    if answer.objective_fault:
        return f"the last k stays in force, because {answer.objective_fault}"
    if answer.k == best and _has_costs(answer):
        return f"the least cost by objective {answer.objective!r}"
    if answer.k == best:
        return f"the least expected time for one round of all {answer.live} workers' blocks"
    unsure = [entry.in_force for entry in answer.expected if entry.in_force.endswith("not sure")]
    if unsure:
        return f"{unsure[0]} yet (it must be three standard errors)"
    return f"k = {best} is cheaper, but by less than the margin that a change must gain"


def _mark(entry: pb.Expected, best: int, now: int) -> str:
    """Return the words beside a k: in force, cheapest or excluded, and the iteration of its last measurement."""
    reasons = [entry.in_force] if entry.in_force else []
    if entry.k == best and entry.in_force != "cheapest":
        reasons.append("cheapest")
    if entry.excluded:
        reasons.append(f"excluded: {entry.excluded}")
    if entry.measured_iterations and entry.measured_last < now - OLD:
        reasons.append(f"measured until iteration {entry.measured_last}")
    return " ".join(["<- in force"] * bool(entry.in_force) + [f"({reason})" for reason in reasons])


def _cheaper(answer: pb.Status, best: int) -> str:
    """Return a sentence about the cheapest k, if it is another k."""
    return "" if answer.k == best else f" The cheapest is k = {best}; `kofn set-k throughput` chooses it."


def _headline(answer: pb.Status) -> Text:
    """Return job, k and iteration, and what the job waits for, if it waits."""
    lost = f" (n = {answer.workers})" if answer.live != answer.workers else ""
    line = Text(
        f"job {answer.job}: k = {answer.k} of {answer.live} live workers{lost}, "
        f"objective {answer.objective}, iteration {answer.iteration}, up {answer.uptime_s:.0f} s",
        style="bold",
    )
    if answer.late_gradient:
        weight = f", each iteration of age leaves {answer.age_weight:g} of their weight" * (answer.age_weight < 1)
        line.append(f"\nlate gradients: {answer.late_gradient}{weight}", style="none")
    others = [str(job) for job in answer.jobs if job != answer.job]
    if others:
        line.append(
            f"\nother job{'s' * (len(others) > 1)} of this controller (--job): {', '.join(others)}", style="none"
        )
    if answer.waiting:
        line.append(f"\nwaiting: {answer.waiting}", style="bold yellow")
    if answer.objective_fault:
        line.append(f"\nk stays {answer.k}: {answer.objective_fault}", style="bold yellow")
    return line


def _switch(answer: pb.Status) -> Text:
    """Return the switch, the job's generation, and the packets of all jobs by verdict."""
    state = "connected" if answer.switch_connected else "NOT CONNECTED (the last k stays in force)"
    lines = [f"switch {answer.switch_address}: {state}" + _generation(answer)]
    if answer.tree:
        lines = [f"tree of {len(answer.tree)} switches{_generation(answer)}", *map(_tree_switch, answer.tree)]
    lines += [in_switch(answer)] if answer.switch_k else []
    admitted = {name: count for name, count in answer.counters.items() if name in ADMITTED}
    dropped = {name: count for name, count in answer.counters.items() if name not in ADMITTED}
    lines += [f"packets: {_counters(admitted)}"] if any(admitted.values()) else []
    lines += [f"dropped: {_counters(dropped)}"] if any(dropped.values()) else []
    lines += [f"refused from {sender}: {count:,} packets" for sender, count in sorted(answer.refused.items())]
    return Text("\n".join(lines))


def _tree_switch(switch: pb.TreeSwitch) -> str:
    return f"  {switch.name} {switch.address}: {'connected' if switch.connected else 'NOT CONNECTED'}"


def in_switch(answer: pb.Status) -> str:
    """Return a line about the k in the switch: how long this k has been there, the iteration from which on it closes
    every block, or the reason why it differs from the wanted k."""
    line = f"k = {answer.switch_k} in the switch since {answer.switch_k_age_s:.0f} s"
    if answer.switch_differs:
        return f"{line}, not {answer.k}: {answer.switch_differs}"
    if answer.k_torn:
        return f"{line}; {answer.k_torn} reports of blocks that closed under another k"
    return f"{line}, every block from iteration {answer.k_certain} on" if answer.k_certain else line


def _generation(answer: pb.Status) -> str:
    """Return the generation of the job's slots, and how often the slots were lost."""
    if not answer.generation:
        return ""
    times = f", regrouped {answer.regroups} time{'s' * (answer.regroups > 1)}" if answer.regroups else ""
    return f", generation {answer.generation}{times}"


def _counters(counters: dict[str, int]) -> str:
    """Return the counters above 0."""
    return " ".join(f"{name}={count:,}" for name, count in sorted(counters.items()) if count)


def _model(answer: pb.Status) -> Text:
    """Return s and tau, and the other values on which predicted times are based."""
    if not answer.service_s:
        return Text("no reports yet")
    lines = [
        f"s (block time without blocking) {1e3 * answer.service_s:.2f} ms, "
        f"tau (one blocking event) {1e3 * answer.event_s:.2f} ms"
    ]
    if answer.hidden_s:
        lines.append(f"up to {1e3 * answer.hidden_s:.2f} ms of s may be blocking that is always there")
    if answer.time_model:
        lines.append(f"time model: {answer.time_model}")
    return Text("\n".join(lines))


def _interval(worker: pb.WorkerStatus) -> str:
    """Return lambda's interval; "?" for an unknown upper end."""
    high = _milliseconds(worker.lambda_high_s) if worker.lambda_high_s else "?"
    return f"{_milliseconds(worker.lambda_low_s)} .. {high}"


def _numbers(worker: pb.WorkerStatus) -> tuple[str, ...]:
    """Return the cells of a worker."""
    known = worker.samples > 0
    return (
        str(worker.rank),
        _milliseconds(worker.lambda_s) if known else "-",
        _interval(worker) if known else "-",
        f"{worker.dispersion:.2f}" if worker.dispersion else "-",
        str(worker.late),
        f"{100 * worker.share:.1f} %",
    )


def _counts(worker: pb.WorkerStatus) -> tuple[str, ...]:
    """Return the cells of a worker in the columns WIDE."""
    pending = f"{worker.waiting:.2f}", str(worker.late_for)
    return str(worker.samples), str(worker.late_in_a_row), *pending, str(worker.reports), str(worker.arrivals)


def _milliseconds(value_s: float) -> str:
    """Return milliseconds in at most five characters, up to 100 s."""
    return f"{1e3 * value_s:.2f}" if value_s < 0.1 else f"{1e3 * value_s:.0f}"


def _matters(worker: pb.WorkerStatus, wide: bool) -> bool:
    """Return whether a worker's disagreements are worth a line. The scheduling of processes causes some disagreements,
    but fewer than the share DISAGREEING of all reports."""
    return worker.disagreements > (0 if wide else max(1, DISAGREEING * worker.reports))


def _disagreement(worker: pb.WorkerStatus) -> Text:
    """Return how often a worker's reports and the switch's digests differ, and the latest case."""
    times = "1 disagreement" if worker.disagreements == 1 else f"{worker.disagreements} disagreements"
    return Text(f"worker {worker.rank}: {times} with the switch in {worker.reports} reports; {worker.disagreement}")


def _remark(worker: pb.WorkerStatus) -> str:
    """Return the most important remark about a worker."""
    if not worker.live:
        return worker.state or "not live"
    if worker.state in ("attached", "joining"):
        return worker.state
    if worker.unheard >= STARVED:
        return f"STARVED: {worker.unheard} in no sum"
    if worker.silent_s:
        return f"silent {1e3 * worker.silent_s:.0f} ms"
    if worker.transfer_s or worker.not_poisson:
        return f"slow link: {_milliseconds(worker.transfer_s)} ms" if worker.transfer_s else "not Poisson"
    return f"attached {worker.attachments} times" if worker.attachments > 1 else ""


def _change(change: pb.Change) -> str:
    """Return what changed, and why: k, or only the rule for late gradients."""
    if change.k == change.previous_k:
        return f"rule {change.late_gradient}, k stays {change.k} ({change.reason})"
    return f"k {change.previous_k} -> {change.k} ({change.reason})"


def _changes(answer: pb.Status) -> RenderableType:
    return Group(
        *(Text(f"iteration {change.iteration}: {_change(change)}") for change in answer.changes[-CHANGES_SHOWN:])
    )
