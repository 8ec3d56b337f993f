"""The scenarios of `kofn experiment protocols`: each protocol in each situation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

import kofn
from kofn.experiments import matrix
from kofn.experiments.matrix import Scenario, of_scenario
from kofn_common.config.faults import FaultSection
from kofn_common.config.interventions import EventSection
from kofn_common.config.job import SWITCH
from kofn_common.config.schema import Config
from kofn_common.config.stragglers import StragglerSection

EXAMPLES = Path(kofn.__file__).resolve().parents[1] / "examples" / "protocols"

FIXED = "fixed"
"""kofn's protocol with k = n - 1."""

COLLECTIVES = {"kofn": SWITCH, FIXED: SWITCH, "switchml": "switchml:Switchml", "atp": "atp:Atp"}
"""The job.collective of each protocol that has a short name."""

WORKERS = 4

LOSSES = (0.0001, 0.001, 0.01, 0.1)
"""Shares of the packets that are lost in each direction."""

SLOW_MS = 200.0
"""Blocking of the slow worker in each iteration."""

SLOTS = (4, 16)
"""Few slots; other situations have the slots of protocols.toml."""

CLEAN, SLOW = "clean", "slow"

ALONE, SHARED = "alone", "shared"
"""Two workers with eight slots, alone, and beside another job with two workers and eight slots."""

DEATH = "death"
"""The situation in which the last worker is killed for good after half of the iterations."""

SITUATIONS = (
    *(CLEAN, *(f"loss-{loss:g}" for loss in LOSSES), SLOW),
    *(*(f"slots-{slots}" for slots in SLOTS), ALONE, SHARED, DEATH),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolContender:
    """A protocol by its short name, or by `module:Name`."""

    name: str

    @property
    def collective(self) -> str:
        return COLLECTIVES.get(self.name, self.name)

    def scenario(self, situation: str, settings: Sequence[str], target: str | None) -> Scenario:
        """Return the protocol's scenario in a situation. ConfigError names the conflict."""
        kind, _, number = situation.partition("-")
        workers = 2 if situation in (ALONE, SHARED) else WORKERS
        objective = f"fixed:{workers - 1}" if self.name == FIXED else "all"
        own = [f'run.trials=["{objective}"]', f"job.collective={self.collective}", f"job.modules={str(EXAMPLES)!r}"]
        own += [f"job.workers={workers}"]
        own += [f"job.slots={number}", f"job.window={int(number) // 2}"] if kind == "slots" else []
        own += ["job.slots=8", "job.window=4"] if kind in (ALONE, SHARED) else []
        name = f"{situation}-{self.name.replace(':', '.')}"
        with of_scenario(name):
            config = Config.load(matrix.FOLDER / "protocols" / "protocols.toml", [*own, *settings])
        if kind == "loss":
            config = structs.replace(config, fault=(FaultSection(drop=float(number)),))
        if kind == SLOW:
            slow = StragglerSection(workers=(config.job.workers - 1,), mean_ms=SLOW_MS, law="constant")
            config = structs.replace(config, straggler=(slow,))
        if kind == DEATH:
            killed = EventSection(at_iteration=config.run.max_iterations // 2, kill=f"worker-{config.job.workers - 1}")
            config = structs.replace(config, event=(killed,))
        other = structs.replace(config, job=structs.replace(config.job, id=config.job.id + 1))
        others = (other,) if kind == SHARED else ()
        made = Scenario(name=name, config=config, others=others, may_fail=kind == DEATH)
        return made.overridden(target=target, objectives=())
