"""`kofn`: run experiments, and look at a running controller.

Only argument handling and calls; what is printed comes from `show`. `run`, `stop` and `clean` live in run/ and are
imported when used: looking at a controller must not wait for plotting libraries.
"""

import asyncio
import contextlib
import importlib
import json
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import click
import grpc
from rich.console import Console
from rich.live import Live

from controller import show
from controller.document import k_document, lambda_document
from rpc import kofn_pb2 as pb
from rpc import kofn_pb2_grpc
from rpc.document import document

Answer = TypeVar("Answer")

EXIT_REFUSED = 2
EXIT_NO_CONTROLLER = 3
TIMEOUT_S = 3.0

LAZY = {
    "run": ("run.runner", "command"),
    "stop": ("run.clean", "stop"),
    "clean": ("run.clean", "command"),
}
"""Commands of other packages: module and name of the click command."""


class LazyGroup(click.Group):
    """A group that imports some of its commands when they are used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Everything, in the order in which a newcomer needs it."""
        return ["run", "stop", "clean", *super().list_commands(context)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command, imported where it is another package's."""
        if name not in LAZY:
            return super().get_command(context, name)
        module, attribute = LAZY[name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """In-network gradient aggregation from the fastest k of n workers.

    \b
    Examples:
      kofn run                    the default experiment
      kofn status                 what a running controller sees
      kofn k                      why k is what it is
      kofn set-k fixed:3          take k into your own hands
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that asks a controller."""
    controller = click.option(
        "--controller",
        "address",
        default="127.0.0.1:50052",
        envvar="KOFN_CONTROLLER",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The controller to ask.",
    )
    return controller(click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")(command))


_wide = click.option("--wide", is_flag=True, help="Every column and every disagreement; needs more than 80 columns.")


@main.command()
@_options
@_wide
def status(address: str, as_json: bool, wide: bool) -> None:
    """The job at a glance: k, workers, the latest decisions, the switch.

    \b
    Examples:
      kofn status
      kofn status --json | jq .k
      KOFN_CONTROLLER=10.0.0.7:50052 kofn status
    """
    _print(address, as_json, lambda answer: answer, lambda answer: show.status(answer, wide=wide))


@main.command()
@_options
def k(address: str, as_json: bool) -> None:
    """For each k its expected time and what a round of all blocks would cost, and why the present one is in force. JSON
    has these as iteration_s and cost, both in seconds, and in_force.

    \b
    Examples:
      kofn k
      kofn k --json | jq '.expected[] | [.k, .cost, .in_force]'
    """
    _print(address, as_json, k_document, show.k_choice)


@main.command("lambda")
@_options
@_wide
def lambda_(address: str, as_json: bool, wide: bool) -> None:
    """Each worker's mean blocking time: estimate, interval, samples, fit, and how often it came too late.

    \b
    Examples:
      kofn lambda
      kofn lambda --json | jq '.worker[].lambda_s'
    """
    _print(address, as_json, lambda_document, lambda answer: show.lambdas(answer, wide=wide))


@main.command()
@_options
@_wide
@click.option("--interval", default=0.5, show_default=True, help="Seconds between updates, at least.")
def watch(address: str, as_json: bool, interval: float, wide: bool) -> None:
    """The status, live, until Ctrl-C or the controller's end. --json: one line for each change.

    \b
    Examples:
      kofn watch
      kofn watch --json --interval 1 > status.jsonl
    """

    async def follow(inspector: Any) -> None:
        statuses = _until_end(inspector.WatchStatus(pb.StatusRequest(interval_s=interval)))
        if as_json or not sys.stdout.isatty():
            await _print_lines(statuses, as_json)
            return
        with Live(console=Console(), auto_refresh=False) as live:
            async for answer in statuses:
                live.update(show.status(answer, wide=wide), refresh=True)

    try:
        _ask(address, follow)
    except KeyboardInterrupt:
        sys.exit(0)


@main.command("set-k")
@click.argument("objective", metavar="N|auto|all|round|fixed:K")
@_options
def set_k(objective: str, address: str, as_json: bool) -> None:
    """Say what k shall be: a number, all workers, or the best for an objective. Holds until it is set again.

    \b
    Examples:
      kofn set-k 3           three from now on, as fixed:3
      kofn set-k all         wait for every worker
      kofn set-k auto        choose it again, as round
    """
    text = "round" if objective == "auto" else f"fixed:{objective}" if objective.isdecimal() else objective

    async def change(inspector: Any) -> pb.Status:
        answer: pb.Status = await inspector.SetObjective(pb.Objective(objective=text), timeout=TIMEOUT_S)
        return answer

    answer = _ask(address, change)
    if as_json:
        click.echo(json.dumps(document(answer), indent=2))
    else:
        click.echo(f"k = {answer.k} of {answer.live} live workers, objective {answer.objective}")


def _print(
    address: str,
    as_json: bool,
    select: Callable[[dict[str, Any]], dict[str, Any]],
    render: Callable[[pb.Status], Any],
) -> None:
    """Ask for a status; print what `select` takes of its JSON, or what `render` makes of it."""

    async def get(inspector: Any) -> pb.Status:
        answer: pb.Status = await inspector.GetStatus(pb.StatusRequest(), timeout=TIMEOUT_S)
        return answer

    answer = _ask(address, get)
    if as_json:
        click.echo(json.dumps(select(document(answer)), indent=2))
    else:
        show.output(sys.stdout, render(answer))


async def _until_end(call: AsyncIterable[pb.Status]) -> AsyncIterator[pb.Status]:
    """The statuses; a controller that ends after the first one ends them, too."""
    statuses = aiter(call)
    yield await anext(statuses)
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for answer in statuses:
            yield answer


async def _print_lines(statuses: AsyncIterator[pb.Status], as_json: bool) -> None:
    """One line for each status."""
    async for answer in statuses:
        click.echo(json.dumps(document(answer)) if as_json else show.line(answer))


def _ask(address: str, call: Callable[[Any], Coroutine[Any, Any, Answer]]) -> Answer:
    """Make one call; end with one line and an exit code where it fails."""

    async def ask() -> Answer:
        async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            return await call(kofn_pb2_grpc.InspectorStub(channel))

    try:
        return asyncio.run(ask())
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            click.echo(f"kofn: no controller answers at {address}: `make run` or `kofn run` starts one", err=True)
            sys.exit(EXIT_NO_CONTROLLER)
        click.echo(f"kofn: {error.details()}", err=True)
        sys.exit(EXIT_REFUSED)
