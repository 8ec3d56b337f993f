"""The accelerators of this machine, for torch.device = "auto": each worker's process sees one of them."""

import os
from collections.abc import Mapping
from pathlib import Path

from kofn_common.config.errors import ConfigError
from kofn_common.config.torch_script import TorchSection

KINDS = {
    "CUDA_VISIBLE_DEVICES": "proc/driver/nvidia/gpus/*",
    "HIP_VISIBLE_DEVICES": "sys/module/amdgpu/drivers/pci:amdgpu/*:*",
    "ZE_AFFINITY_MASK": "sys/module/xe/drivers/pci:xe/*:*",
}
"""By environment variable: the paths by which the kernel lists the devices. The driver shows a process only the devices
that the variable names."""


def present(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[str, list[str]] | None:
    """Return the variable and its devices; None if there is no device. The devices are those that the environment
    names, or else all devices that the kernel lists."""
    for variable, places in KINDS.items():
        listed = [str(number) for number, _ in enumerate(root.glob(places))]
        if devices := environment[variable].split(",") if environment.get(variable) else listed:
            return variable, devices
    return None


def check(torch: TorchSection) -> None:
    """Raise ConfigError if workers need a device and there is none."""
    if torch.device == "auto" and present() is None:
        raise ConfigError(
            "torch.device must be 'script' where no accelerator of NVIDIA, AMD or Intel is present, got 'auto'"
        )


def visible(
    torch: TorchSection, rank: int, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> dict[str, str]:
    """Return the variable that shows this rank's worker its device: workers take the devices in turn."""
    found = present(environment, root) if torch.device == "auto" else None
    return {} if found is None else {found[0]: found[1][rank % len(found[1])]}
