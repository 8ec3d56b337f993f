"""/metrics has the newest frame's values, and the Grafana dashboard uses only existing metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kofn.web.metrics import exposition
from kofn.web.reader import RunReader
from tests.web.lab import recorded

DASHBOARD = Path("docs/grafana.json")

Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Return the samples by name and label values."""
    reader = RunReader(recorded(tmp_path_factory.mktemp("metrics") / "run").path, over=lambda: True)
    reader.poll()
    found: Samples = {}
    for family in text_string_to_metric_families(exposition(reader).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics_have_the_newest_frame(samples: Samples) -> None:
    assert samples["kofn_trial"] == {("1",): 1}
    assert samples["kofn_iteration"] == {("1",): 200}
    assert samples["kofn_k"] == {("1",): 4}
    assert samples["kofn_metric"][("1",)] == pytest.approx(0.968, abs=0.01)
    assert samples["kofn_iteration_seconds"][("1",)] == pytest.approx(0.075, abs=0.02)


def test_metrics_of_each_worker(samples: Samples) -> None:
    assert samples["kofn_worker_injected_seconds"] == {("1", rank): 0.06 if rank == "1" else 0.001 for rank in "0123"}
    assert samples["kofn_worker_blocking_seconds"][("1", "1")] == pytest.approx(0.06, abs=0.02)
    sent = samples["kofn_link_bytes_total"][("to_switch", "1", "0")]
    assert samples["kofn_link_bytes_total"][("from_switch", "1", "0")] == 2 * sent > 0


def test_metrics_of_the_switch(samples: Samples) -> None:
    assert samples["kofn_packets_total"] == {("ADDED",): 1960}
    assert samples["kofn_slots"] == {("1", "open"): 1, ("1", "closed"): 1}


def test_unknown_values_are_missing(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", trials=1)
    (entry,) = folder.trials[0]
    entry.status.write_text("")
    entry.samples.unlink()
    reader = RunReader(folder.path, over=lambda: True)
    reader.poll()
    text = exposition(reader).decode()
    assert "kofn_worker_injected_seconds{" in text
    assert "kofn_worker_blocking_seconds{" not in text
    assert "kofn_slots{" not in text


def test_dashboard_uses_existing_metrics(samples: Samples) -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked = {name for expression in expressions for name in re.findall(r"\bkofn_\w+", expression)}
    assert len(asked) > 10
    assert asked <= samples.keys()


def test_every_panel_has_a_unit_and_a_place() -> None:
    places = [tuple(panel["gridPos"].values()) for panel in panels()]
    assert len(set(places)) == len(places) > 5
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels())


def panels() -> list[dict[str, Any]]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return list(dashboard["panels"])
