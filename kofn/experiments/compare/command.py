"""`kofn compare`: the options of the command; compare.comparison runs the comparison."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kofn.experiments.compare.comparison import Comparison
from kofn.experiments.compare.models import NAMES, models
from kofn.experiments.compare.plan import QUICK, Axes, available
from kofn.experiments.compare.points import COLLECTIVES, STRAGGLERS
from kofn.experiments.conduct import check_results
from kofn.experiments.kept_options import read_options
from kofn.report.table import make_console
from kofn.run.ending import ending
from kofn.run.options import FiniteRange, set_option
from kofn_common.config.errors import ConfigError
from kofn_common.config.section import MBPS
from kofn_common.results.folder import default_path

EXAMPLES = """
\b
Examples:
  kofn compare --quick                        minutes: a first look
  kofn compare --dry-run                      the runs, and how long they take
  kofn compare --out runs/compare             everything: hours; the same command continues after Ctrl-C
  kofn compare --model 1m --straggler none --collective ring --collective full
  kofn compare --model 10m --mbps 100 --workers 4 --seeds 1
  kofn compare --model gpt --mbps 200 --workers 4 --collective gloo --collective full --collective adaptive
  kofn compare --replay my-gradients          your own gradients: a folder of .npy files, float32, all of one size
  kofn compare --target bmv2                  on simple_switch_grpc
  kofn compare --out runs/compare --report-only   tables, claims and report again, with the options of its runs
  kofn run runs/compare/1m-none-4w-100m-ring/seed-1.toml   one run again, with the live table and a report

\b
Exit codes: 0 every training reached its target (a training with a fixed k may miss it), with identical replicas and
every gradient conserved; 1 otherwise; 2 the command line is wrong; 130 stopped by a signal. Claims are printed, and do
not count.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    metavar="NAME",
    help=f"{', '.join(COLLECTIVES)}, or module:Name; may be repeated.  [default: all; gloo and mpi where installed]",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="NAME",
    help="As compress.codec, but ring, gloo and mpi send float32; may be repeated.  [default: int32, int8]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(NAMES),
    help="digits is trained, gradients of 1m and 10m are replayed, gpt is trained in PyTorch; may be repeated."
    "  [default: digits, 1m]",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Compare with your own gradients as well: a folder of .npy files, float32, all of one size.",
)
@click.option(
    "--straggler", "stragglers", multiple=True, type=click.Choice(STRAGGLERS), help="May be repeated.  [default: both]"
)
@click.option(
    "--workers", multiple=True, type=click.IntRange(2, 64), metavar="N", help="May be repeated.  [default: 4, 8]"
)
@click.option(
    "--mbps",
    multiple=True,
    type=FiniteRange(*MBPS),
    metavar="RATE",
    help="Rate of every link, lowered to what the machine carries; may be repeated.  [default: 100, 1000]",
)
@click.option(
    "--k", type=click.IntRange(min=1), metavar="K", help="k of the collective `fixed`.  [default: all but one]"
)
@click.option(
    "--seeds", type=click.IntRange(min=1), metavar="N", help="Seeds 1 to N, a round of the matrix each.  [default: 3]"
)
@click.option(
    "--iterations",
    type=click.IntRange(min=3),
    metavar="N",
    help="Iterations of replayed gradients; the first one is left out.  [default: 16]",
)
@set_option
@click.option(
    "--target", type=click.Choice(["embedded", "bmv2"]), default="embedded", show_default=True, help="The switch."
)
@click.option("--no-switches", is_flag=True, help="Do not compare the bytes of the embedded switch and BMv2.")
@click.option(
    "--quick",
    is_flag=True,
    help="Four workers, 100 Mbit/s, one seed: gradients without stragglers, training with one worker blocked.",
)
@click.option("--dry-run", is_flag=True, help="Print what would run and how long it would take; run nothing.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the results; runs that are finished in it are not repeated.  [default: runs/compare-TIME]",
)
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON on stdout, the rest on stderr.")
@click.option("--report-only", is_flag=True, help="Run nothing: print what the results in --out show.")
def command(
    *, replay: Path | None, dry_run: bool, out: Path | None, as_json: bool, report_only: bool, **given: Any
) -> None:
    """Compare all methods to reduce gradients, with the same network, model, seeds and stragglers.

    Outside the network: server is a parameter server behind the switch, ring a ring of the workers over TCP, gloo
    PyTorch's all-reduce, mpi Open MPI's. In the network: full waits for all workers, fixed for k of them, adaptive for
    as many as the controller chooses.

    Every method is run with every straggler scenario, link rate, number of workers and model; a seed is a round of all.
    digits is trained to its target accuracy. For 1m and 10m gradients are replayed, without computing, so that an
    iteration is an all-reduce and its consequences. gpt has ten million parameters in PyTorch's
    DistributedDataParallel: gloo is DDP's own all-reduce, fixed and adaptive are kofn_torch's elastic optimizer, and
    the other methods are kofn_torch's hook.
    """
    console = make_console(stderr=as_json)
    with ending("compare"):
        asked = {name: value for name, value in given.items() if value not in (None, (), False)}
        if replay is not None:
            asked["replay"] = str(replay)
        if report_only:
            kept = read_options(check_results(out, "a comparison"))
            if kept is None:
                raise ConfigError(f"{out}: no comparison was begun there")
            asked = kept | asked
            replay = Path(asked["replay"]) if "replay" in asked else None
        axes, notes = _axes(asked)
        folder = out or default_path("compare")
        names = () if replay and "models" not in asked else axes.models
        comparison = Comparison(
            axes=axes, folder=folder, models=models(names, folder, replay), notes=notes, console=console, options=asked
        )
        if dry_run:
            comparison.show(as_json=as_json)
            return
        code = comparison.read(as_json=as_json) if report_only else comparison.run(as_json=as_json)
    sys.exit(code)


def _axes(asked: dict[str, Any]) -> tuple[Axes, list[str]]:
    """Return the axes with the given options, and notes about them."""
    collectives, notes = available(asked.get("collectives", ()))
    base = QUICK if "quick" in asked else Axes()
    given = {name: value for name, value in asked.items() if name not in ("no_switches", "replay")}
    once = {name: tuple(dict.fromkeys(value)) for name, value in given.items() if isinstance(value, tuple)}
    axes = replace(base, **{**given, **once, "collectives": collectives, "switches": "no_switches" not in asked})
    axes.check()
    return axes, notes
