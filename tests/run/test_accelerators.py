"""torch.device = "auto": each worker's process sees one of the machine's accelerators."""

from pathlib import Path

import pytest

from kofn.run import accelerators
from kofn.run.accelerators import check, present, visible
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.config.torch_script import TorchSection

AUTO = TorchSection(device="auto")


def test_workers_take_the_devices_in_turn(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:41:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    found = [visible(AUTO, rank, {}, tmp_path) for rank in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["0", "1", "0"]
    assert visible(AUTO, 1, {"CUDA_VISIBLE_DEVICES": "3,GPU-7"}, tmp_path) == {"CUDA_VISIBLE_DEVICES": "GPU-7"}
    assert visible(TorchSection(), 1, {}, tmp_path) == {}


def test_devices_of_amd_are_found_by_their_driver(tmp_path: Path) -> None:
    (tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu/0000:03:00.0").mkdir(parents=True)
    assert visible(AUTO, 5, {}, tmp_path) == {"HIP_VISIBLE_DEVICES": "0"}


def test_machine_without_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert present({}, tmp_path) is None
    monkeypatch.setattr(accelerators, "present", lambda: None)
    with pytest.raises(ConfigError, match=r"torch.device must be 'script' where no accelerator"):
        check(AUTO)
    with pytest.raises(ConfigError, match=r"torch.device must be 'script' without torch.script"):
        Config.of({"torch": {"device": "auto"}})
