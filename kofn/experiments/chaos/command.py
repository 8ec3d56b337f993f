"""`kofn chaos`: the same training under every kind of fault, one scenario after another, and a table of the outcomes.

A scenario passes when it reaches the same accuracy as the fault-free scenario, all replicas are bit-identical after
every iteration, and every gradient is conserved exactly. The scenario's configuration lies beside its results, for
`kofn run`.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kofn.experiments.chaos.crash import crashed
from kofn.experiments.chaos.outcomes import ScenarioOutcome, outcome_row, outcomes_table
from kofn.experiments.chaos.scenarios import BASE, FaultScenario, scenarios
from kofn.experiments.outcome import RESULTS
from kofn.experiments.reader import frame
from kofn.report.table import make_console
from kofn.run.conclusion import summarised
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.errors import InterruptedRun, LeftoversError
from kofn.run.plan import make_plan
from kofn.run.preconditions import check_machine
from kofn.run.runner import execute
from kofn.run.state import another_run, running
from kofn.run.switch_identity import bmv2
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError, KofnError
from kofn_common.config.suggestion import did_you_mean
from kofn_common.json_text import json_text
from kofn_common.results.folder import RunFolder, default_path
from kofn_switch.identity import BMV2

SCENARIO_S = 20
"""The approximate duration of a scenario."""

EXAMPLES = """
\b
Examples:
  kofn chaos                                  every scenario, on the embedded switch
  kofn chaos --target bmv2                    the same on simple_switch_grpc
  kofn chaos --target bmv2 --set network.link_mbps=20    on links that BMv2 can fill
  kofn chaos loss-10 switch-killed            two scenarios
  kofn chaos --racks 2                        four workers in a tree of two racks, and faults of leaves and uplinks
  kofn chaos --objective async:3              every scenario, with another rule for late gradients
  kofn chaos --list                           the scenarios' names
  kofn run runs/chaos-.../embedded/loss-10.toml   one scenario again, with the live table and a report

\b
Exit codes: 0 every scenario passed, 1 a scenario failed, 2 the command line is wrong, 130 stopped by a signal.
"""


@click.command(epilog=EXAMPLES)
@click.argument("names", nargs=-1, metavar="[SCENARIO]...")
@click.option("--target", multiple=True, type=click.Choice(["embedded", "bmv2"]), help="May be repeated.  [embedded]")
@click.option("--driver", type=click.Choice(["auto", "mininet", "netns"]), help="Makes the hosts.  [default: auto]")
@click.option(
    "--objective",
    default=BASE.run.trials[0],
    show_default=True,
    help="Objective of every scenario without its own: RULE:K (async:3, for example), or an objective that chooses.",
)
@click.option(
    "--racks",
    type=click.IntRange(1, 4),
    default=1,
    show_default=True,
    help="Racks of a tree for the workers; 1: one switch.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Another value for a key of every configuration, network.link_mbps=20 for example; repeat it for more.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the results.  [default: runs/chaos-TIME]",
)
@click.option("--if-present", is_flag=True, help="Skip a target whose program is not on the PATH, and say so.")
@click.option("--list", "as_list", is_flag=True, help="List the scenarios and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="The outcomes as JSON on stdout, progress on stderr.")
def command(
    *,
    names: tuple[str, ...],
    target: tuple[str, ...],
    driver: str | None,
    objective: str,
    racks: int,
    settings: tuple[str, ...],
    out: Path | None,
    if_present: bool,
    as_list: bool,
    as_json: bool,
) -> None:
    """Train under faults: loss, repetition, reordering, corruption, partitions, crashes, changes of k and of workers,
    the death of all processes.

    SCENARIOs are names from --list; without any, all are run.
    """
    console, outcomes = make_console(stderr=as_json), {}
    with ending("chaos"):
        chosen = [scenario.under(objective) for scenario in _choose(names, racks)]
        if as_list:
            return _list(chosen, console, as_json=as_json)
        if running() is not None:
            raise another_run()
        folder = out or default_path("chaos")
        targets = list(target or ("embedded",))
        if if_present and "bmv2" in targets and bmv2() is None:
            say(console, f"bmv2: skipped, {BMV2} is not on the PATH")
            targets.remove("bmv2")
        for name in targets:
            check_machine(name)
        for name in targets:
            outcomes[name] = list(_matrix(chosen, folder / name, name, driver, settings, console))
            console.print(outcomes_table(name, outcomes[name]))
    sys.exit(_conclude(folder, outcomes, console, as_json=as_json))


def _choose(names: Sequence[str], racks: int) -> list[FaultScenario]:
    """Return the scenarios with these names, in the order of --list. Raise ConfigError for an unknown name."""
    known = list(scenarios(racks))
    if unknown := set(names) - {scenario.name for scenario in known}:
        allowed = ", ".join(scenario.name for scenario in known)
        meant = did_you_mean(min(unknown), [scenario.name for scenario in known])
        raise ConfigError(f"SCENARIO must be among {allowed}, got {', '.join(sorted(unknown))}{meant}")
    return [scenario for scenario in known if not names or scenario.name in names]


def _list(chosen: Sequence[FaultScenario], console: Console, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text([{"name": scenario.name, "story": scenario.story} for scenario in chosen], indent=2))
        return
    table = Table("scenario", "what happens", box=None, pad_edge=False, header_style="bold")
    for scenario in chosen:
        table.add_row(scenario.name, scenario.story)
    console.print(table)


def _matrix(
    chosen: Sequence[FaultScenario],
    folder: Path,
    target: str,
    driver: str | None,
    settings: tuple[str, ...],
    console: Console,
) -> Iterator[ScenarioOutcome]:
    """Run the scenarios in order; a failure, or a scenario that the configuration forbids, does not stop the others.

    Raise ConfigError if the configuration forbids all scenarios.
    """
    refusal: ConfigError | None = None
    ran = False
    size = f"{len(chosen)} scenario{'s' * (len(chosen) > 1)}"
    say(console, f"{size} on {target}, about {SCENARIO_S * len(chosen) // 60 + 1} min; results in {folder}")
    for number, scenario in enumerate(chosen, 1):
        say(console, f"[{number}/{len(chosen)}] {scenario.name}: {scenario.story}", style="bold")
        if target == "bmv2" and scenario.embedded_only:
            say(console, f"  skipped: {scenario.embedded_only}")
            continue
        begin = time.monotonic()
        try:
            outcomes = _run(scenario, folder, target, driver, settings, console, check=not ran)
        except ConfigError as error:
            refusal = error
            say(console, f"  skipped: {error}")
            continue
        ran = True
        verdict = "passed" if all(outcome.passed for outcome in outcomes) else "FAILED"
        say(console, f"  {verdict} in {time.monotonic() - begin:.1f} s")
        for reason in [reason for outcome in outcomes for reason in outcome.failures]:
            say(console, f"  {reason}", style="red")
        yield from outcomes
    if refusal is not None and not ran:
        raise refusal


def _run(
    scenario: FaultScenario,
    folder: Path,
    target: str,
    driver: str | None,
    settings: tuple[str, ...],
    console: Console,
    *,
    check: bool,
) -> list[ScenarioOutcome]:
    """Run one scenario, and return an outcome for each job."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [scenario.name, *(f"{scenario.name}-job-{config.job.id}" for config in scenario.jobs[1:])]
    sources = [folder / f"{name}.toml" for name in names]
    for source, config in zip(sources, scenario.jobs, strict=True):
        source.write_text(to_toml(config))
    plan = make_plan(*sources, target=target, driver=driver, out=folder / scenario.name, settings=settings, quiet=True)
    try:
        if scenario.crash is None:
            results, wrong = execute(replace(plan, check=check), console), []
        else:
            given = [
                *(["--driver", driver] if driver else []),
                *(part for setting in settings for part in ("--set", setting)),
            ]
            wrong = crashed(scenario.crash, sources[0], plan.folder, ["--target", target, *given], plan.shared)
            results = RunFolder.open(plan.folder)
        summary = summarised(results, plan.configs)
    except (InterruptedRun, LeftoversError):
        raise
    except KofnError as error:
        return [
            ScenarioOutcome(scenario=scenario.name, story=scenario.story, job=0, passed=False, failures=(str(error),))
        ]
    return [
        ScenarioOutcome(
            scenario=scenario.name,
            story=scenario.story,
            job=job.job,
            passed=not job.failures and not wrong,
            failures=(*job.failures, *wrong),
            summary=job.trials[0],
        )
        for job in summary.jobs
    ]


def _conclude(folder: Path, outcomes: dict[str, list[ScenarioOutcome]], console: Console, *, as_json: bool) -> int:
    """Write all outcomes to chaos.json and results.csv; return the exit code."""
    text = json_text({target: [asdict(outcome) for outcome in each] for target, each in outcomes.items()}, indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chaos.json").write_text(text + "\n")
    rows = [outcome_row(target, outcome) for target, each in outcomes.items() for outcome in each]
    frame(rows).to_csv(folder / RESULTS, index=False)
    failed = [
        f"{target}: {outcome.scenario}" for target, each in outcomes.items() for outcome in each if not outcome.passed
    ]
    passed = sum(map(len, outcomes.values())) - len(failed)
    say(
        console,
        f"{passed} passed, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}; {folder}/chaos.json",
    )
    if as_json:
        click.echo(text)
    return 1 if failed else 0
