"""Tables of experiments, and their columns."""

import io
import math

from rich.console import Console

from kofn.experiments.tables import TextTable, column_text, milliseconds, ratio_text, shown
from kofn.report.frames import summary_columns
from kofn.report.interval import Interval
from tests.experiments.test_chaos import SUMMARY


def test_summary_is_flattened() -> None:
    columns = summary_columns(SUMMARY)
    assert columns["retransmissions"] == 1234
    assert columns["owned_accuracy"] is None
    assert not {"late_by_worker", "k_iterations", "compressed"} & set(columns)


def test_means_have_units_and_intervals() -> None:
    assert column_text("mean_iteration_s", Interval.of([0.02])) == "20.00 ms"
    assert column_text("time_to_target_s", Interval.of([2.0, 2.0])) == "2.00 s (2.00 to 2.00)"
    assert column_text("bytes_sent", Interval.of([3e6])) == "3.00 MB"
    assert column_text("progress_per_s", Interval.of([14.96])) == "15"
    assert column_text("iterations_to_target", None) == ratio_text(None) == "-"
    assert ratio_text(Interval.of([0.5])) == "0.50"


def test_cells_describe_missing_values() -> None:
    assert [shown(value) for value in (1.0, None, math.nan, math.inf)] == ["1.00", "-", "-", "never"]
    assert [milliseconds(value) for value in (0.0123, None, math.inf)] == ["12.3 ms", "-", "-"]


def test_failed_rows_are_red() -> None:
    table = TextTable(headings=["scenario"], cells=[["loss"], ["delay"]], failed=frozenset({1}))
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard", no_color=False).print(table)
    assert "\x1b[31mdelay" in file.getvalue()
