"""Hypothesis profiles: `check` draws the same examples every time, `quick` a few of them; `nightly` (KOFN_NIGHTLY=1)
draws many new ones.

The speed of drawing examples depends on the machine's load, so it is no finding.

Tests neither see nor disturb a run that is active on this machine.

A file is imported only if one of its tests may match -m (tests/marks.py). Files with a slow test come first, so that no
core is left with a long one at the end.

Nothing here imports a distribution that may be missing: the tests of a room also run where it is installed alone.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.marks import may_match

settings.register_profile(
    "check",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("check"), max_examples=10, stateful_step_count=20)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=3000,
    stateful_step_count=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nightly" if os.environ.get("KOFN_NIGHTLY") == "1" else "check")


def pytest_configure() -> None:
    """Refuse a switch that only has BMv2's name: tests would compare kofn-switch with itself."""
    if find_spec("kofn_switch") is None:
        return
    from kofn_switch.errors import OtherSwitch  # noqa: PLC0415 - where it is installed
    from kofn_switch.identity import bmv2  # noqa: PLC0415

    try:
        bmv2()
    except OtherSwitch as error:
        raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file without a test that may match -m: an import may cost a second."""
    expression = config.getoption("markexpr")
    if expression and collection_path.match("test_*.py") and not may_match(collection_path, expression):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without garbage collections: the modules stay, so none needs to look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class TimeOut(BaseException):
    """A test took too long. Hypothesis takes every Exception for a finding, and would shrink it."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, bool, bool]:
    """End a test that takes too long by TimeOut."""
    is_set = yield
    fail = signal.getsignal(signal.SIGALRM)
    if not callable(fail):  # pytest-timeout uses a thread here
        return is_set

    def handle(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        try:
            fail(number, frame)
        except pytest.fail.Exception as error:
            raise TimeOut(str(error)) from None

    signal.signal(signal.SIGALRM, handle)
    return is_set


PROCESSES = 4
"""A quick test starts no more interpreters, so that `make quick` stays short on any machine."""

_started = 0


def _count(event: str, arguments: tuple[object, ...]) -> None:
    global _started  # noqa: PLW0603 - an audit hook has no other state
    _started += event == "os.fork" or (event == "subprocess.Popen" and "python" in Path(str(arguments[0])).name)


sys.addaudithook(_count)


@pytest.fixture(autouse=True)
def few_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of `make quick` that starts many interpreters."""
    before = _started
    yield
    if request.config.getoption("--hypothesis-profile") == "quick":
        found = _started - before
        assert found <= PROCESSES, (
            f"a quick test must start at most {PROCESSES} interpreters, got {found}: mark it slow"
        )


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide active runs from all commands of tests, unless a test sets up its own machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KOFN_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Forget the modules of a test's folders, since the next test has others of the same names."""
    modules, path, folders = {*sys.modules}, [*sys.path], {**_plugin_folders()}
    yield
    for name in {*sys.modules} - modules:
        file = Path(getattr(sys.modules[name], "__file__", None) or "")
        if file.name == f"{name}.py" and str(file.parent) not in path:
            del sys.modules[name]
    sys.path[:] = path
    known = _plugin_folders()
    known.clear()
    known.update(folders)


def _plugin_folders() -> dict[str, Path | None]:
    """Return the folders in which plug-ins were looked for; none if nothing has loaded the registries."""
    plugins = sys.modules.get("kofn_common.config.plugins")
    return {} if plugins is None else plugins._FOLDERS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the cost of the tests: their duration depends on what else the machine does."""
    if not hasattr(config, "workerinput"):
        print(f"{sum(os.times()[:4]):.0f} processor seconds, with the processes that were waited for")
