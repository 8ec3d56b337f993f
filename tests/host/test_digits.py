"""The data of the training."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits as reference

from host import model
from host.errors import AgentError


def test_the_digits_are_scikit_learns() -> None:
    pixels, digits = model.load_digits()
    expected = reference()
    assert np.array_equal(pixels, expected.data)
    assert np.array_equal(digits, expected.target)


def test_a_worker_does_not_wait_for_scikit_learn() -> None:
    code = "import sys; from host import model, worker; model.load_digits(); print('sklearn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_missing_digits_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = ModuleSpec("sklearn", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(AgentError, match=r"digits are missing: .*/datasets/data/digits\.csv\.gz"):
        model.load_digits()
