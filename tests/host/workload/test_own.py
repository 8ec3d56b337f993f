"""A user's workloads: their definitions, refusals, and where their module is found."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.compression.plan import Planner
from kofn_host.errors import AgentError
from kofn_host.workload.check import check_workload
from kofn_host.workload.replica import Replica, from_parts, to_parts
from kofn_host.workload.workload import load_workload, metric_of

PLAN = Planner(blocks=1, widths=(32,)).first()
NOTHING = np.zeros(1, np.int64)

GOOD = """
import numpy as np
from kofn_host.workload.metric import Metric
from kofn_host.workload.optimizer import Optimizer
from kofn_host.workload.workload import Workload

class Counting(Optimizer):
    def __init__(self, parameters):
        self.parameters, self.steps = parameters, np.zeros(1, np.int32)

    def step(self, gradient):
        self.steps += 1
        self.parameters -= gradient / np.float32(self.steps[0])

    def state(self):
        return {"steps": self.steps}

    def restore(self, state):
        self.steps[:] = state["steps"]

class Bowl(Workload):
    metric = Metric(name="height", better="lower", target=0.5)

    def __init__(self, config, rank):
        self.rank = rank
        self.parameters = np.full(4, 3, np.float32)
        self.optimizer = Counting(self.parameters)

    def gradient(self, iteration, batch=0):
        return 1.0, np.float32(0.1) * self.parameters

    def evaluate(self):
        return float(np.sum(self.parameters ** 2))
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Return a user's folder with the module own.py; it is not the working folder."""
    (tmp_path / "own.py").write_text(GOOD)
    (tmp_path / "own.toml").write_text("[model]\nworkload = 'own:Bowl'\n[job]\nworkers = 2\n")
    return tmp_path


def test_module_is_found_beside_the_configuration(users: Path) -> None:
    config = Config.load(users / "own.toml")
    assert "own" not in sys.modules and str(users) not in sys.path, (
        "no module may be imported, and no path changed, before the first use"
    )
    check_workload(config)
    assert sys.modules["own"].__file__ == str(users / "own.py")


def test_module_is_found_in_the_configured_folder(users: Path) -> None:
    (users / "deep").mkdir()
    (users / "own.py").rename(users / "deep" / "own.py")
    config = Config.load(users / "own.toml", {"job": {"modules": "deep"}})
    check_workload(config)
    assert sys.modules["own"].__file__ == str(users / "deep" / "own.py")


def test_every_process_finds_the_module_by_its_configuration(users: Path, tmp_path: Path) -> None:
    """The process runs in another working folder, with an effective.toml from a folder of results."""
    from kofn_common.config.dump import to_toml  # noqa: PLC0415

    away = tmp_path / "results"
    away.mkdir()
    (away / "effective.toml").write_text(to_toml(Config.load(users / "own.toml").at_home(users)))
    code = (
        "from pathlib import Path; from kofn_common.config.schema import Config; "
        "from kofn_host.workload.workload import load_workload; "
        "print(type(load_workload(Config.load(Path('effective.toml')), 1)).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=away, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Bowl"


def test_own_optimizer_steps_and_own_metric_ends_the_trial(users: Path) -> None:
    config = Config.load(users / "own.toml")
    replica = Replica(load_workload(config, 0), config, 1, PLAN)
    metric, gradient = metric_of(config), np.full(4, 2, np.float32)
    assert metric is not None
    values = [replica.apply(i, gradient, NOTHING, PLAN).accuracy for i in (1, 2)]
    assert values == [4.0, 0.0], "the metric sums the squares of four parameters: 3 - 2/1 = 1, then 1 - 2/2 = 0"
    assert [metric.reached(value) for value in values] == [False, True]
    assert metric_of(Config.load(users / "own.toml", ["run.target=4"])).reached(values[0])


def test_joining_replica_has_the_optimizers_state(users: Path) -> None:
    config = Config.load(users / "own.toml")
    old, young = (Replica(load_workload(config, rank), config, 1, PLAN) for rank in (0, 1))
    gradient = np.full(4, 2, np.float32)
    old.apply(1, gradient, NOTHING, PLAN)
    state = old.state()
    assert state is not None
    parts: dict[str, bytes] = {}
    for name, data in to_parts(state, part_bytes=3):
        parts[name] = parts.get(name, b"") + data
    young.restore(from_parts(1, parts))
    assert old.apply(2, gradient, NOTHING, PLAN) == young.apply(2, gradient, NOTHING, PLAN)
    plain = Replica(load_workload(Config(), 0), Config(), 1, PLAN)
    with pytest.raises(AgentError, match=r"parameters must be float32 .*, got float32 \(4,\)"):
        plain.restore(state)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("np.full(4, 3, np.float32)", "np.full(4, 3.0)", "are float64 (4,), but must be float32 (elements,)"),
        ("np.full(4, 3, np.float32)", "[1.0]", "parameters are a list, but must be a NumPy array"),
        ("np.full(4, 3, np.float32)", "np.full(4, rank, np.float32)", "the parameters of two workers differ"),
        ("        self.parameters = np", "        nothing = np", "failed: AttributeError"),
        ("return 1.0, np.float32(0.1) *", "return 1.0, 0.1 * np.float64(1) *", "gradient(1, 0) is float64 (4,)"),
        ("return 1.0, np.float32(0.1) *", "return 1.0, np.float32('nan') *", "gradient(1, 0) is not finite"),
        ("* self.parameters\n", "* self.parameters[:2]\n", "must have as many elements as parameters, 4, got 2"),
        ("return 1.0, ", "self.parameters += 1; return 1.0, ", "gradient(1, 0) changes the parameters"),
        ("return float(np.sum", "return str(np.sum", "evaluate() must return a number, got '"),
        ("return float(np.sum", "return self.rank + float(np.sum", "must return the same for the same parameters"),
        ("    def evaluate", "    def look", "Bowl must have evaluate(), or metric = None"),
        ('self.steps[:] = state["steps"]', "pass", "two workers' parameters differ after the same steps"),
        ("def restore", "def take", "failed: TypeError"),
        ("    def step", "    def go", "failed: TypeError"),
    ],
)
def test_faults_of_a_workload_are_named_before_a_run(users: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    (users / "own.py").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as raised:
        check_workload(Config.load(users / "own.toml"))
    assert str(raised.value).startswith("workload 'own:Bowl'") and words in str(raised.value)


def test_without_a_metric_nothing_is_evaluated(users: Path) -> None:
    (users / "own.py").write_text(
        "\n".join("    metric = None" if "metric = " in line else line for line in GOOD.splitlines())
    )
    check_workload(Config.load(users / "own.toml"))
    assert metric_of(Config.load(users / "own.toml", ["run.target=1"])) is None


def test_target_of_a_share_is_between_0_and_1() -> None:
    with pytest.raises(ConfigError, match=r"run.target must be more than 0, at most 1 for accuracy, got 95"):
        check_workload(Config.parse("[run]\ntarget = 95"))


def test_missing_pytorch_is_named(users: Path) -> None:
    (users / "own.py").write_text("from kofn_host.workload.pytorch import TorchWorkload as Bowl")
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; "
        "from kofn_common.config.schema import Config; "
        "from kofn_host.workload.workload import workload_class; workload_class(Config.load(Path('own.toml')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=users, capture_output=True, text=True, check=False)
    assert "workload 'own:Bowl' cannot be loaded: torch is not installed: pip install 'kofn[torch]'" in done.stderr
