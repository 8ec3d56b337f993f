"""One run: network, processes, trials, events, live view.

The package is called like a function: `kofn.run(config)` is RunPackage.__call__.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from kofn.report.reader import Run
    from kofn.run.library import Progress
    from kofn_common.config.given import Given, Sections


class RunPackage(ModuleType):
    """`kofn.run`, which is this folder and a function."""

    def __call__(
        self,
        *configs: "Given",
        trials: Sequence[str] = (),
        target: str | None = None,
        driver: str | None = None,
        lab: Path | str | None = None,
        out: Path | str | None = None,
        progress: "Progress" = True,
        **sections: "Unpack[Sections]",
    ) -> "Run":
        """Train through the switch once for each trial, as the command `kofn run` does, and read the results.

        Each of `configs` is a Config, a path, TOML text or a dict of tables. Several configurations are several jobs on
        one switch; without a configuration the default experiment runs. `sections` override keys: job={"workers": 8}.
        `trials` are objectives, `target` is "embedded" or "bmv2", `driver` is "auto", "mininet" or "netns", `lab` is
        the file of a laboratory, and `out` is the folder for the results, like the command's options of the same names.
        `progress` True shows the newest
        line, False shows none; a function is called with each line.

        Without `lab`, the call needs root. The returned Run has `failures` if a trial misses its target or a check
        fails. The call raises KofnError if the run cannot be carried out. Ctrl-C removes processes and network, and
        then raises KeyboardInterrupt.
        """
        from kofn.report.reader import Run  # noqa: PLC0415  # pandas
        from kofn.run.lab.lab_file import Lab  # noqa: PLC0415
        from kofn.run.library import in_thread, planned  # noqa: PLC0415
        from kofn.run.runner import carry_out  # noqa: PLC0415

        choices = {"target": target, "driver": driver, "lab": None if lab is None else Lab.load(Path(lab))}
        with planned(configs, sections, trials=trials, out=out, **choices) as plan:
            in_thread(lambda console: carry_out(plan, console, errors=console), progress)
            return Run(plan.folder)


sys.modules[__name__].__class__ = RunPackage
