"""The tests of accelerators, in processes of their own: the pretend one stays a process's torch.accelerator."""

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

from tests.torch import devices, pretend

pytestmark = [
    pytest.mark.skipif(pretend.missing() is not None, reason=str(pretend.missing())),
    pytest.mark.timeout(400),
]


def test_pretend_accelerator_computes_as_the_cpu_and_shows_missing_waits() -> None:
    _passes("tests/torch/on_device/test_pretend.py")


def test_deliberate_mistakes_show_on_the_pretend_accelerator() -> None:
    _passes("tests/torch/on_device/test_mistakes.py")


def _passes(*arguments: str, mode: str = "late") -> None:
    ended = devices.run(*arguments, mode=mode)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
