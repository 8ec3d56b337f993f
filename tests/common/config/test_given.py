"""Forms in which a script may give a configuration, and errors for others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.given import Given, Sections, load
from kofn_common.config.schema import Config

TEXT = "[job]\nworkers = 3\n[[straggler]]\nworkers = [2]\nmean_ms = 20.0\n"
TABLES: dict[str, Any] = {"job": {"workers": 3}, "straggler": [{"workers": [2], "mean_ms": 20.0}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_all_forms_mean_the_same(path: Path) -> None:
    ways: list[Given] = [TEXT, TABLES, path, str(path), Config.parse(TEXT)]
    said = [load(given, {"run": {"seed": 7}}) for given in ways]
    assert [(one.job, one.straggler, one.run) for one in said[1:]] == [
        (said[0].job, said[0].straggler, said[0].run)
    ] * 4
    assert said[0].run.seed == 7


def test_given_keys_replace_those_of_a_section_and_others_stay() -> None:
    given = {"job": {"workers": 3, "words": 2}}
    assert load(given, {"job": {"workers": 4}}).job == load({"job": {"workers": 4, "words": 2}}).job
    assert given == {"job": {"workers": 3, "words": 2}}, "the caller's document must not change"


def test_trials_follow_the_policy_unless_they_are_given() -> None:
    policy = {"policy": {"objective": "throughput"}}
    assert load(Config(), policy).run.trials == ("throughput", "all")
    assert load(Config.parse("[run]\ntrials = ['all']"), policy).run.trials == ("all",)


def test_list_is_replaced_by_another() -> None:
    assert load(TEXT, {"straggler": []}).straggler == ()
    assert load(TEXT, {"straggler": [{"workers": (0,), "mean_ms": 5}]}).straggler[0].workers == (0,)


def test_numbers_of_numpy_are_accepted() -> None:
    config = load(TABLES, {"model": {"learning_rate": np.float32(0.5)}, "run": {"seed": np.int64(3)}})
    assert (config.model.learning_rate, config.run.seed) == (0.5, 3)


def test_relative_paths_start_at_the_file_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    text = '[network]\ntopology = "t.json"\n[model]\ntrace = "t.csv"\n'
    (tmp_path / "there" / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    there, here = load(Path("there/mine.toml")), load(text)
    assert (there.network.topology, there.model.trace) == (tmp_path / "there/t.json", str(tmp_path / "there/t.csv"))
    assert (here.network.topology, here.model.trace) == (tmp_path / "t.json", str(tmp_path / "t.csv"))


def test_errors_name_their_place(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^nothing\.toml: No such file"):
        load("nothing.toml")
    with pytest.raises(ConfigError, match=r"^job\.workers must be 1 to 64 with job\.racks = 1, got 65$"):
        load(TABLES, {"job": {"workers": 65}})
    with pytest.raises(ConfigError, match=rf"^{path}: a table or key must be one of .*, got 'jop'"):
        load(path, {"jop": {"workers": 2}})
    with pytest.raises(ConfigError, match=r"^not TOML"):
        load("job = {")


@pytest.mark.parametrize("given", [3, None, ["job.toml"]])
def test_object_that_is_no_configuration_is_named(given: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"the configuration must be a Config, a path, TOML or tables, got a {type(given).__name__}"
    ):
        load(given)


def test_every_table_of_a_configuration_can_be_given() -> None:
    assert set(Sections.__annotations__) == set(Config.__struct_fields__)
