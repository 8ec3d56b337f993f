"""The TOML file's [torch]: a script in PyTorch in place of kofn's own training."""

from collections.abc import Sequence
from typing import Literal

from kofn_common.config.errors import ConfigError
from kofn_common.config.interventions import CpuSection
from kofn_common.config.late_rules import RULES, RuleChoice
from kofn_common.config.section import Section, WholeNumber

SCRIPT = "script"
"""The model.workload of trainings by torch.script."""

SCRIPT_RULE: RuleChoice = "async"
"""A script's default rule for late gradients: PyTorch neither gives up a backward pass nor repeats one."""


class TorchSection(Section, frozen=True):
    """A script in PyTorch that torchrun starts at each worker, in place of kofn's own training."""

    script: str | None = None  # relative to the TOML file; None: model.workload is trained
    arguments: tuple[str, ...] = ()  # command-line arguments of the script
    group: Literal["job", "worker"] = (
        "job"  # job: one process group of all workers; worker: one for each worker, which may rejoin
    )
    max_restarts: WholeNumber = (
        0  # most times that torchrun restarts a worker that dies; with group = "job", all workers
    )
    device: Literal["script", "auto"] = "script"  # auto: each worker sees one accelerator of this machine, in turn

    def check(self, workload: str, collective: str, late: str, cpu: Sequence[CpuSection], *, alone: bool) -> None:
        """Check that only the script is trained, with a ledger, and with settings that it can follow."""
        if (self.script is not None) != (workload == SCRIPT):
            given = "given" if self.script is not None else "not given"
            raise ConfigError(
                f"model.workload must be {SCRIPT!r} with torch.script, and only then, got {workload!r} and a script"
                f" {given}"
            )
        if self.script is None and self.device != "script":
            raise ConfigError(f"torch.device must be 'script' without torch.script, got {self.device!r}")
        if self.script is not None and collective == "gloo" and self.group != "job":
            raise ConfigError(
                f"torch.group must be 'job' with job.collective = 'gloo', got {self.group!r}: gloo sums in the script's"
                " process group"
            )
        if self.script is not None and alone:
            raise ConfigError("run.alone must be false with torch.script, got true: no script is trained alone")
        if self.script is not None and cpu:
            raise ConfigError("cpu and torch.script must not both be given: a script is torchrun's process")
        allowed = [name for name, rule in RULES.items() if not (rule.gives_up or rule.repeats)]
        if self.script is not None and late not in ("auto", *allowed):
            raise ConfigError(
                f"policy.late_gradient must be one of {', '.join(allowed)} with torch.script, got {late!r}"
            )
