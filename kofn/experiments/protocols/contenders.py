"""The scenarios of `kofn experiment protocols`: each protocol in each situation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

import kofn
from kofn.config.objectives import DEFAULT
from kofn.config.schema import SWITCH, Config, FaultSection, StragglerSection
from kofn.experiments import matrix
from kofn.experiments.matrix import Scenario, of_scenario

EXAMPLES = Path(kofn.__file__).resolve().parents[1] / "examples" / "protocols"

COLLECTIVES = {"kofn": SWITCH, DEFAULT: SWITCH, "switchml": "switchml:Switchml"}
"""The job.collective of each protocol that has a short name; kofn's twice, with all workers and with a chosen k."""

LOSSES = (0.0001, 0.001, 0.01, 0.1)
"""Shares of the packets that are lost in each direction."""

SLOW_MS = 200.0
"""Blocking of the slow worker in each iteration."""

SLOTS = (4, 16)
"""Few slots; the other situations have those of protocols.toml."""

CLEAN, SLOW = "clean", "slow"

SITUATIONS = (CLEAN, *(f"loss-{loss:g}" for loss in LOSSES), SLOW, *(f"slots-{slots}" for slots in SLOTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolContender:
    """A protocol: kofn, one with a short name, or `module:Name`."""

    name: str

    @property
    def collective(self) -> str:
        return COLLECTIVES.get(self.name, self.name)

    def scenario(self, situation: str, settings: Sequence[str], target: str | None) -> Scenario:
        """Return the protocol's scenario in a situation. ConfigError names the conflict."""
        kind, _, number = situation.partition("-")
        objective = DEFAULT if self.name == DEFAULT else "all"
        own = [f'run.trials=["{objective}"]', f"job.collective={self.collective}", f"job.modules={str(EXAMPLES)!r}"]
        own += [f"job.slots={number}", f"job.window={int(number) // 2}"] if kind == "slots" else []
        name = f"{situation}-{self.name.replace(':', '.')}"
        with of_scenario(name):
            config = Config.load(matrix.FOLDER / "protocols" / "protocols.toml", [*own, *settings])
        if kind == "loss":
            config = structs.replace(config, fault=(FaultSection(drop=float(number)),))
        if kind == SLOW:
            slow = StragglerSection(workers=(config.job.workers - 1,), mean_ms=SLOW_MS, law="constant")
            config = structs.replace(config, straggler=(slow,))
        return Scenario(name=name, config=config).overridden(target=target, objectives=())
