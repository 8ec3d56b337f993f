"""The tests of accelerators, in processes of their own: the pretend one stays a process's torch.accelerator."""

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

from tests.pytorch import devices, pretend

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(pretend.missing() is not None, reason=str(pretend.missing())),
    pytest.mark.timeout(700),
]


@pytest.mark.long
def test_staging_is_right_and_deliberate_mistakes_show() -> None:
    """The pretend accelerator's own tests, and all tests that need an accelerator."""
    _passes("tests/pytorch/on_device")


TRAININGS = [
    f"tests/pytorch/test_{name}.py" for name in ("hook", "elastic", "schedule", "zero", "replicas", "refusals")
]


@pytest.mark.long
def test_trainings_pass_on_the_pretend_accelerator() -> None:
    """These are the CPU's tests, with models on devices between inputs and outputs on the CPU."""
    _passes(TRAININGS[0])


@pytest.mark.long
@pytest.mark.parametrize("mode", devices.MODES)
def test_all_trainings_pass_in_every_mode(mode: str) -> None:
    _passes(*TRAININGS, "tests/pytorch/on_device/test_group.py", "tests/pytorch/on_device/test_training.py", mode=mode)


def _passes(*arguments: str, mode: str = "late") -> None:
    ended = devices.run(*arguments, mode=mode)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
