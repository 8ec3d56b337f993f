"""`run.seeds`: the same run with several seeds, one after another, and their common results."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import click
from msgspec import structs
from rich.console import Console

from kofn.report.over_seeds import SeedsSummary, over_seeds
from kofn.report.summarise import summarise_run
from kofn.report.summary import RunSummary
from kofn.report.table import make_console
from kofn.run.conclusion import conclude, noted_end, say_failures
from kofn.run.display import report_line, say
from kofn.run.plan import RunPlan, copy_given
from kofn.run.signals import deferred, ignored
from kofn_common.json_text import json_text
from kofn_common.results.folder import RunFolder, point_latest
from kofn_common.results.record import read_record

CarryOut = Callable[[RunPlan, Console], RunFolder]
"""A function that runs until the last worker's end: run.runner.execute, or a simulation."""


def run_seeds(plan: RunPlan, console: Console, carry_out: CarryOut) -> int:
    """Run every seed in PLAN.FOLDER/seed-N, then conclude all seeds together; return the exit code."""
    plans = list(_by_seed(plan))
    folder = _prepare(plan, [seed_plan.shared.run.seed for seed_plan in plans])

    def conclude_rest(folder: RunFolder) -> None:
        conclude_seeds(folder, console, as_json=plan.as_json, raised=True)

    with noted_end(folder, conclude_rest):
        for seed_plan in plans:
            seed = seed_plan.shared.run.seed
            say(
                console,
                f"seed {seed} ({seed - plan.shared.run.seed + 1} of {len(plans)}): results in {seed_plan.folder}",
            )
            ran = carry_out(seed_plan, console)
            folder.note_switch(ran.record().provenance.switch)
            with deferred():
                conclude(ran, seed_plan.configs, make_console(quiet=True), as_json=False)
    folder.update_record(finished=len(plan.shared.run.trials))
    with ignored():
        return conclude_seeds(folder, console, as_json=plan.as_json)


def _by_seed(plan: RunPlan) -> Iterator[RunPlan]:
    for number, seed in enumerate(islice(count(plan.shared.run.seed), plan.shared.run.seeds)):
        run = structs.replace(plan.shared.run, seed=seed, seeds=1)
        jobs = tuple(replace(job, config=structs.replace(job.config, run=run)) for job in plan.jobs)
        yield replace(plan, jobs=jobs, folder=plan.folder / f"seed-{seed}", check=plan.check and number == 0)


def _prepare(plan: RunPlan, seeds: list[int]) -> RunFolder:
    """Make the folder above the seeds' folders, without a trial."""
    folder = RunFolder.create(plan.folder, (), [config.job.id for config in plan.configs])
    copy_given(plan, folder)
    folder.write_record(plan.configs, driver=plan.shared.network.driver)
    folder.update_record(seeds=tuple(seeds), trials=tuple((objective, "") for objective in plan.shared.run.trials))
    point_latest(plan.folder)
    return folder


def conclude_seeds(
    folder: RunFolder, console: Console, *, as_json: bool, early_end: str = "", raised: bool = False
) -> int:
    """Write summary and report over all seeds that were begun; return the exit code. Arguments are
    those of conclude()."""
    summary = summarise_seeds(folder, early_end or folder.record().early_end)
    (folder.path / "summary.json").write_text(json_text(summary.to_dict(), indent=2) + "\n")
    for part in summary.parts():
        console.print(part)
    for note in summary.notes:
        say(console, note)
    say(console, report_line(lambda: _write_page(folder, summary)))
    say_failures(summary.failures, summary.early_end if raised else "")
    if as_json:
        click.echo(json_text(summary.to_dict(), indent=2))
    return 1 if summary.failures else 0


def summarise_seeds(folder: RunFolder, early_end: str) -> SeedsSummary:
    """Return the summary from the seeds' folders."""
    record = folder.record()
    summaries = dict(_summaries(folder, record.seeds, early_end))
    by_job = zip(*(summary.jobs for summary in summaries.values()), strict=True)
    return SeedsSummary(
        seeds=record.seeds,
        summaries=summaries,
        jobs=tuple(over_seeds(several) for several in by_job),
        early_end=early_end,
        provenance=record.provenance,
    )


def _summaries(folder: RunFolder, seeds: tuple[int, ...], early_end: str) -> Iterator[tuple[int, RunSummary]]:
    for seed in seeds:
        path = folder.path / f"seed-{seed}"
        if (path / "run.json").exists():
            run = RunFolder.open(path)
            ended = read_record(path).early_end and early_end
            yield seed, summarise_run(run, run.configs(), ended)


def _write_page(folder: RunFolder, summary: SeedsSummary) -> Path:
    from kofn.report.seeds_page import write_seeds_page  # noqa: PLC0415  # matplotlib

    return write_seeds_page(folder, summary)
