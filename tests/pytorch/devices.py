"""The devices of tests' models: the CPU, and in a process with KOFN_TEST_DEVICE an accelerator's.

"pretend" is tests/pytorch/pretend in the mode that KOFN_TEST_MODE names; "auto" is torch.accelerator.
"""

import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.pytorch import pretend

KIND = os.environ.get("KOFN_TEST_DEVICE", "cpu")

MODES = {
    "late": (pretend.LATE, 0),
    "training's stream slow": (pretend.TURN, 0),
    "stream out slow": (pretend.TURN, 1),
    "stream back slow": (pretend.TURN, 2),
}
"""The systematic modes: each of a session's three streams in turn is the slow one."""

if KIND == "pretend":
    pretend.load()  # before kofn_torch is imported, which asks for torch.accelerator

BACKEND = "gloo" if KIND == "cpu" else "kofn"
"""The backend of groups in which DDP is used: gloo knows no pretend devices."""

_here, _numbers = threading.local(), count()


def start() -> None:
    """Have this process use the devices; each test begins with it."""
    if KIND == "pretend":
        pretend.mode(*MODES[os.environ.get("KOFN_TEST_MODE", "late")])


def use_gloo() -> None:
    """Have this thread's next group "kofn" make all calls by gloo, which itself knows no pretend devices."""
    from kofn_torch import process_group  # noqa: PLC0415

    process_group._used.set(SimpleNamespace(workers=0))  # type: ignore[arg-type]


def place() -> torch.device:
    """Return the device of this thread's models: another one for each thread, as autograd has a thread for each."""
    if KIND == "cpu":
        return torch.device("cpu")
    if not hasattr(_here, "number"):
        _here.number = next(_numbers) % torch.accelerator.device_count()
    return torch.device(torch.accelerator.current_accelerator().type, _here.number)


def placed(module: torch.nn.Module) -> Any:
    """Return the module on this thread's device, between inputs and outputs on the CPU."""
    device = place()
    if device.type != "cpu":
        module.to(device)
        module.register_forward_pre_hook(Moved(device))
        module.register_forward_hook(Moved(torch.device("cpu")))
    return module


class Moved:
    """A hook that moves what a module takes, or gives, to a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, module: torch.nn.Module, *values: Any) -> Any:
        return tree_map(lambda each: each.to(self.device), values[-1])


def run(*arguments: str, mode: str = "late", limit_s: float = 600.0) -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate process with the pretend accelerator in a mode of MODES."""
    environment = {**os.environ, "KOFN_TEST_DEVICE": "pretend", "KOFN_TEST_MODE": mode}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
