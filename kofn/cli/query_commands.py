"""Commands that ask a running controller.

This module has only arguments and calls; `show` forms the output, `ask` finds the controller and explains errors.
"""

import contextlib
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import click
import grpc
from rich.live import Live

from kofn.cli import show
from kofn.cli.ask import TIMEOUT_S, Asking, asking
from kofn.cli.document import k_document, lambda_document
from kofn.cli.page import watch_page
from kofn.report.table import make_console
from kofn.run.options import FiniteRange
from kofn_common.config.objectives import DEFAULT
from kofn_common.json_text import json_text
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.document import document

_wide = click.option("--wide", is_flag=True, help="Every column and every disagreement; needs more than 80 columns.")


@click.command()
@asking
@_wide
def status(asked: Asking, wide: bool) -> None:
    """Show the job at a glance: k, workers, the latest decisions, the switch.

    \b
    Examples:
      kofn status
      kofn status --json | jq .k
      KOFN_CONTROLLER=10.0.0.7:50052 kofn status
    """
    _print(asked, lambda answer: answer, lambda answer: show.status(answer, wide=wide))


@click.command()
@asking
def k(asked: Asking) -> None:
    """Show expected, predicted and measured iteration time and cost of each k, and why the present k is in force.

    JSON has them as iteration_s (E_k[T]), predicted_s, measured_s and cost, all in seconds, and in_force. overhead_s is
    the time after the first blocks.

    \b
    Examples:
      kofn k
      kofn k --json | jq '.expected[] | [.k, .cost, .in_force]'
    """
    _print(asked, k_document, show.k_choice)


@click.command("lambda")
@asking
@_wide
def lambda_(asked: Asking, wide: bool) -> None:
    """Show each worker's mean blocking time: estimate, interval, samples, fit, and how often the worker was late.

    \b
    Examples:
      kofn lambda
      kofn lambda --json | jq '.worker[].lambda_s'
    """
    _print(asked, lambda_document, lambda answer: show.lambdas(answer, wide=wide))


@click.command()
@asking
@_wide
@click.option(
    "--interval",
    type=FiniteRange(min=0.05, max=3600),
    default=0.5,
    show_default=True,
    help="Seconds between updates, at least.",
)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--web", is_flag=True, help="Serve a page of the current run, or of the run in FOLDER.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The page's port at 127.0.0.1.  [default: a free port]"
)
def watch(asked: Asking, interval: float, wide: bool, folder: Path | None, web: bool, port: int) -> None:
    """Show the status live, until Ctrl-C or the controller's end. --json prints a line for each change.

    With --web the command serves a page until Ctrl-C, with the topology, slots, workers and curves of the current run,
    or of a finished run or simulation in FOLDER (play, pause, speed, seek).

    \b
    Examples:
      kofn watch
      kofn watch --json --interval 1 > status.jsonl
      kofn watch --web runs/latest
    """
    if web:
        watch_page(folder, port)
        return
    if folder is not None:
        raise click.UsageError(f"FOLDER {folder} is for --web")

    async def follow(inspector: Any) -> None:
        statuses = _until_end(inspector.WatchStatus(pb.StatusRequest(interval_s=interval, job=asked.job)))
        if asked.as_json or not sys.stdout.isatty():
            await _print_lines(statuses, asked.as_json)
            return
        with Live(console=make_console(), auto_refresh=False) as live:
            async for answer in statuses:
                live.update(show.status(answer, wide=wide, lines=live.console.height), refresh=True)

    try:
        asked.ask(follow)
    except KeyboardInterrupt:
        sys.exit(0)


@click.command("set-k")
@click.argument("objective", metavar="N|auto|all|progress|throughput|fixed:K|RULE:K|NAME")
@asking
def set_k(asked: Asking, objective: str) -> None:
    """Set k: a number, all workers, or the best for an objective. The setting holds until the next one.

    \b
    Examples:
      kofn set-k 3           k = 3 from now on, as fixed:3
      kofn set-k all         wait for every worker
      kofn set-k auto        let the controller choose again, by progress
      kofn set-k deadline    by the objective of a plug-in (docs/howto/objective.md)
    """
    text = DEFAULT if objective == "auto" else f"fixed:{objective}" if objective.isdecimal() else objective

    async def change(inspector: Any) -> pb.Status:
        answer: pb.Status = await inspector.SetObjective(pb.Objective(objective=text, job=asked.job), timeout=TIMEOUT_S)
        return answer

    answer = asked.ask(change)
    if asked.as_json:
        click.echo(json_text(document(answer), indent=2))
    else:
        click.echo(f"k = {answer.k} of {answer.live} live workers, objective {answer.objective}")


def _print(
    asked: Asking,
    select: Callable[[dict[str, Any]], dict[str, Any]],
    render: Callable[[pb.Status], Any],
) -> None:
    """Ask for a status. Print the part of the status that `select` returns, as JSON, or print the text that `render`
    returns."""

    async def get(inspector: Any) -> pb.Status:
        answer: pb.Status = await inspector.GetStatus(pb.StatusRequest(job=asked.job), timeout=TIMEOUT_S)
        return answer

    answer = asked.ask(get)
    if asked.as_json:
        click.echo(json_text(select(document(answer)), indent=2))
    else:
        show.output(sys.stdout, render(answer))


async def _until_end(call: AsyncIterable[pb.Status]) -> AsyncIterator[pb.Status]:
    """Yield statuses until the controller ends. Raise the call's error if the controller does not answer at all."""
    statuses = aiter(call)
    yield await anext(statuses)
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for answer in statuses:
            yield answer


async def _print_lines(statuses: AsyncIterator[pb.Status], as_json: bool) -> None:
    """Print a line for each status."""
    async for answer in statuses:
        click.echo(json_text(document(answer)) if as_json else show.line(answer))
