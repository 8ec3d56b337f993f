"""The names of `import kofn`, and the modules that it does not load."""

import inspect
import subprocess
import sys
from importlib import resources

import pytest

import kofn
from kofn_common.exports import exports


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.torch if "Torch" in name else ()) for name in exports(kofn.__file__)],
)
def test_public_name_exists_and_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(kofn, name))
    assert name in dir(kofn)


def test_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'reed': it has Array, .*Communicator, Config, .*read, run, simulate"
    ):
        _ = kofn.reed  # type: ignore[attr-defined]


def test_kofn_run_is_a_function_and_a_package() -> None:
    import kofn.run.errors  # noqa: PLC0415  # what would hide a function of that name

    assert callable(kofn.run)
    assert kofn.run.errors.RunError
    assert {"configs", "trials", "out", "progress", "sections"} <= set(inspect.signature(kofn.run).parameters)


def test_types_are_shipped() -> None:
    assert resources.files("kofn").joinpath("py.typed").is_file()


@pytest.mark.parametrize("module", ["kofn", "kofn_switch.__main__"])
def test_import_of_the_package_loads_no_data_frames(module: str) -> None:
    code = f"import sys, {module}; sys.exit(', '.join({{'pandas', 'rich', 'matplotlib'}} & set(sys.modules)) or None)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
