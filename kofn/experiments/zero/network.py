"""Sharded trainings at links of several rates: the cost of a step, and the time to the loss of uncompressed Adam.

Whole trainings would take hours at 50 Mbit/s. So a run measures a few steps of the warm-up, and a few steps after the
warm-up.
The steps that a training needs are counted without a network (`--convergence` with the task `mlp`, the same model and
batches).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

import msgspec
from rich.console import Console

from kofn.experiments.conduct import gone_through
from kofn.experiments.matrix import FOLDER, Cell, CellResult, Scenario, cells, check_cells
from kofn.experiments.statistics import Spread
from kofn.experiments.zero.contenders import WORKERS
from kofn.experiments.zero.network_contenders import NETWORK, LinkFormula, NetworkContender
from kofn.experiments.zero.tables import arms
from kofn.experiments.zero.training import BATCH, ELEMENTS, HIDDEN, TASKS, Learned
from kofn.run.preconditions import check_machine
from kofn.run.runner import execute
from kofn.run.state import another_run, running
from kofn_common.config.schema import Config
from kofn_common.places import folder_of
from kofn_common.results.step_cost import STEPS_FILE, StepCost
from kofn_common.wire.sizes import VOTE_WORDS

WARM, FEW = 4, 8
"""Steps of a run in the warm-up, and after it; the first step of either kind does not count."""

TASK = "mlp"

SCRIPT = folder_of("kofn_torch") / "scripts" / "sharded_steps.py"

WORDS = 32
"""The value of job.words for lanes of 32 and 8 bits; with one bit job.words is VOTE_WORDS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeans:
    """Steps of a kind at a rate: the slowest worker's median time, in seconds, and the mean bytes of a step over a
    worker's link."""

    time_s: float
    up: float
    down: float

    @classmethod
    def of(cls, workers: Sequence[Sequence[StepCost]]) -> "StepMeans":
        every = [cost for costs in workers for cost in costs]
        return cls(
            time_s=max(median(cost.time_s for cost in costs) for costs in workers),
            up=fmean(cost.up for cost in every),
            down=fmean(cost.down for cost in every),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkArm:
    """A contender at a rate. `steps` is the number of steps to the loss, which the trainings of --convergence give; it
    is NaN without these trainings."""

    contender: NetworkContender
    mbps: float
    warm: StepMeans
    few: StepMeans
    steps: float

    @property
    def to_loss_s(self) -> float:
        before = min(self.steps, TASKS[TASK].freeze_step) if self.contender.warms_up else 0
        return before * self.warm.time_s + (self.steps - before) * self.few.time_s

    @property
    def formula(self) -> LinkFormula:
        return self.contender.link_bytes(ELEMENTS, warm=False)


def network_cells(names: Sequence[str], rates: Sequence[float], folder: Path) -> list[Cell]:
    return cells([_scenario(NETWORK[name], rate) for rate in rates for name in names], 1, folder)


def run_network(matrix: Sequence[Cell], folder: Path, console: Console) -> Iterator[CellResult]:
    """Run unfinished cells. Raise RunError during another run. Raise ConfigError or RunError if a requirement is
    missing."""
    if running() is not None:
        raise another_run()
    check_cells(matrix)
    check_machine(matrix[0].config.network.target)
    return gone_through(matrix, folder, execute, console)


def network_arms(
    results: Sequence[CellResult], learned: Mapping[tuple[str, int], Learned]
) -> dict[float, dict[str, NetworkArm]]:
    """Return arms of finished runs, by rate and contender; `learned` has the task's trainings, by contender and
    seed."""
    steps = {arm.name: Spread.of(arm.steps).median for arm in arms(learned)}
    found = dict[float, dict[str, NetworkArm]]()
    for result in results:
        if not result.trials:
            continue
        mbps = result.cell.config.network.link_mbps
        assert mbps is not None
        name = result.cell.scenario.name
        contender = next(contender for contender in NETWORK.values() if _name_of(contender, mbps) == name)
        means = partial(_means, _costs(result.cell))
        found.setdefault(mbps, {})[contender.name] = NetworkArm(
            contender=contender,
            mbps=mbps,
            warm=means(slice(1, WARM)),
            few=means(slice(WARM + 1, None)),
            steps=steps.get(contender.learns_as, math.nan),
        )
    return found


def _means(costs: Sequence[Sequence[StepCost]], which: slice) -> StepMeans:
    return StepMeans.of([steps[which] for steps in costs])


def _costs(cell: Cell) -> list[list[StepCost]]:
    (trial,) = cell.job().trials
    paths = (trial.path / STEPS_FILE.format(rank=rank) for rank in range(WORKERS))
    return [msgspec.json.decode(path.read_bytes(), type=list[StepCost]) for path in paths]


def _scenario(contender: NetworkContender, mbps: float) -> Scenario:
    task = TASKS[TASK]
    steps = ["--steps", str(WARM + FEW), "--freeze-step", str(WARM), "--batch", str(BATCH), "--rate", str(task.rate)]
    arguments = [*contender.arguments, *steps, "--hidden", *map(str, HIDDEN)]
    path = FOLDER / "zero" / "network.toml"
    words = VOTE_WORDS if contender.bits == 1 else WORDS
    config = Config.load(
        path,
        [
            f"torch.script={str(SCRIPT)!r}",
            f"torch.arguments={arguments!r}",
            f"network.link_mbps={mbps}",
            f"job.words={words}",
        ],
    )
    return Scenario(name=_name_of(contender, mbps), config=config)


def _name_of(contender: NetworkContender, mbps: float) -> str:
    """Return the name of a contender's run at a rate, and of the run's folder."""
    return f"{contender.name.replace(', ', '-').replace(' ', '-')}-{mbps:g}-mbps"
