"""Compressed blocks in virtual time: every codec trains, and exact quantities stay exact under loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_common.config.late_rules import RULES
from kofn_common.config.schema import Config
from kofn_common.wire.packet import WORD_BYTES
from tests.sim.lab import FREE, Trained, written
from tests.sim.test_exact import EVENTS, FAULTS

pytestmark = pytest.mark.slow


def trained(folder: Path, compress: str, more: str = "", words: int = 2, costs: Any = None, **given: Any) -> Trained:
    """Run a small simulation to its end; `compress`: the section's lines."""
    path = written(folder, f"{more}\n[compress]\n{compress}\n", **given)
    path.write_text(path.read_text().replace("words = 2", f"words = {words}"))
    run = Trained(Config.load(path), folder / "out", *([costs] if costs else []))
    return run.run()


def lines(run: Trained, rank: int = 0, of: str = "width") -> list[dict[str, Any]]:
    """Return a worker's lines that have this field; `width` is in those of iterations in which it took part."""
    text = run.entry.metrics(rank).read_text().splitlines()[:-1]
    return [line for line in map(json.loads, text) if of in line]


CASES = {
    "int32-selected": ("ratio = 0.3\nmax_send_interval = 5", 2),
    "int16": ('codec = "int16"', 2),
    "int8": ('codec = "int8"\nrounding = "stochastic"', 1),
    "int4-no-feedback": ('codec = "int4"\nerror_feedback = false', 1),
    "onebit-selected": ('codec = "onebit"\nratio = 0.05\nmax_send_interval = 4', 1),
    "auto": ('codec = "auto"\nratio = 0.1', 8),
    "auto-literal": ('codec = "auto"\nratio_control = "literal"', 8),
}


@pytest.mark.parametrize(("name", "rule"), list(zip(CASES, [*RULES] * 2, strict=False)))
def test_gradients_are_conserved_and_replicas_identical(tmp_path: Path, name: str, rule: str) -> None:
    """Packets are lost, repeated and reordered, k changes, and the third worker's gradients are mostly late."""
    compress, words = CASES[name]
    run = trained(tmp_path, compress, FAULTS + EVENTS, words, rule=rule, iterations=35)
    run.check()
    plans = [model.encoder.plan.to_arrays() for model in run.models]
    assert all(np.array_equal(plan[part], plans[0][part]) for plan in plans for part in plan)
    assert run.total("refused") > 0 or name not in ("int16", "int8", "int4-no-feedback"), (
        "workers must refuse the scales of the first worker in a slot"
    )
    assert any(line["late"] for line in lines(run, 2, "late")) or RULES[rule].gives_up
    discarded = dict(np.load(run.entry.sums(0)))["discarded"]
    assert discarded.any() == ("no-feedback" in name) or rule == "drop"


def test_votes_are_sent_at_the_pace_of_their_answers(tmp_path: Path) -> None:
    """Answers are three times as long: a link full of them would lose some and delay all."""
    path = written(tmp_path, '[network]\nlink_mbps = 2\n[compress]\ncodec = "onebit"\n', objective="all", iterations=4)
    text = path.read_text().replace("hidden = [16]", "hidden = [640, 640]").replace("words = 2", "words = 1")
    path.write_text(text.replace("mean_ms = 20", "mean_ms = 2").replace("workers = 3", "workers = 4"))
    run = Trained(Config.load(path), tmp_path / "out", FREE).run()
    run.check()
    ends = [json.loads(run.entry.metrics(rank).read_text().splitlines()[-1])["summary"] for rank in range(4)]
    share = sum(end["retransmissions"] for end in ends) / sum(end["packets_sent"] for end in ends)
    print(f"{share:.3f} of all packets were sent again")
    assert share < 0.15


def iterations(tmp_path: Path, name: str, compress: str, words: int) -> int:
    """Return the iterations to 90 %, at a learning rate that tolerates late gradients."""
    folder = tmp_path / name
    folder.mkdir()
    path = written(folder, f"[compress]\n{compress}\n", objective="all", iterations=400, target=0.9)
    path.write_text(
        path.read_text().replace("words = 2", f"words = {words}").replace("[model]", "[model]\nlearning_rate = 0.02")
    )
    run = Trained(Config.load(path), folder / "out", FREE).run()
    run.check()
    last = lines(run)[-1]
    assert last["accuracy"] >= 0.9
    return int(last["iteration"])


def test_digits_are_learnt_in_narrow_lanes(tmp_path: Path) -> None:
    wide = iterations(tmp_path, "int32", 'codec = "int32"', 8)
    found = {
        name: iterations(tmp_path, name, f'codec = "{name}"\n{more}', 1) / wide
        for name, more in (("int8", ""), ("int4", ""), ("onebit", ""))
    }
    assert found["int8"] <= 1.1
    assert found["int4"] <= 1.5
    assert found["onebit"] <= 1.5


DROP = """
[[link]]
workers = [0, 1, 2]
mbps = 5
at_iteration = 6
after_s = 0.012
"""


def test_ratio_follows_a_link_that_drops_to_a_quarter(tmp_path: Path) -> None:
    """It drops in mid-iteration. The remaining blocks use narrower lanes, and so do all blocks of
    the next iterations.
    """
    seen = {}
    for name, compress in (("off", 'codec = "int32"'), ("on", 'codec = "auto"\nratio_control = "deliverable"')):
        folder = tmp_path / name
        folder.mkdir()
        path = written(
            folder, DROP + f"[network]\nlink_mbps = 20\n[compress]\n{compress}\n", objective="all", iterations=15
        )
        text = (
            path.read_text().replace("words = 2", "words = 8\nwindow = 8").replace("hidden = [16]", "hidden = [1536]")
        )
        path.write_text(text)
        run = Trained(Config.load(path), folder / "out", FREE).run()
        run.check()
        seen[name] = lines(run)
    before, after = (
        [line for line in seen["on"] if low < line["iteration"] <= high] for low, high in ((0, 6), (11, 15))
    )
    assert {line["width"] for line in before} == {32}
    assert {line["width"] for line in after} <= {8, 4}
    (dropped,) = (line for line in seen["on"] if line["iteration"] == 7)
    assert {line["rate_ratio"] for line in before} == {None}
    assert dropped["ratio"] == 1
    assert 1 / 4 < dropped["rate_ratio"] < 1, "the iteration in which the link becomes slow has partly left before"
    sent = {name: max(line["wire_ratio"] for line in some if line["iteration"] == 7) for name, some in seen.items()}
    assert sent["on"] < 0.8 * sent["off"], "ratio control must send less while links are slow"
    took = {name: np.median([line["iteration_s"] for line in some[-4:]]) for name, some in seen.items()}
    assert took["on"] * 2 < took["off"]


def test_lanes_with_too_large_an_encoding_error_are_refused(tmp_path: Path) -> None:
    """A link at a tenth asks for 4-bit lanes; all workers use 8 bits, and each gives the reason."""
    more = DROP.replace("mbps = 5", "mbps = 2") + "[network]\nlink_mbps = 20\n"
    path = written(
        tmp_path,
        f'{more}[compress]\ncodec = "auto"\nratio_control = "deliverable"\nmax_encoding_error = 0.1\n',
        objective="all",
        iterations=12,
    )
    text = path.read_text().replace("words = 2", "words = 8\nwindow = 8").replace("hidden = [16]", "hidden = [512]")
    path.write_text(text)
    run = Trained(Config.load(path), tmp_path / "out", FREE).run()
    run.check()
    for rank in range(3):
        last = lines(run, rank)[-1]
        assert (last["width"], last["refused_width"]) == (8, 4)
        assert 0.1 < last["refused_error"] < 1
        assert last["ratio"] < 1 / 4
        assert last["error_norm"] ** 2 < 0.1 * last["gradient_norm2"]
        assert last["wire_ratio"] == pytest.approx(1 / 4, rel=0.1)


SELECTING = (
    'codec = "int32"\nratio = 0.3',
    'codec = "int8"\nratio = 0.1',
    'codec = "int8"\nratio = 0.2',
    'codec = "onebit"\nratio = 0.01',
)
ITERATIONS = 40
LATE = """
[[straggler]]
workers = [0, 1, 2]
mean_ms = 0
[[straggler]]
workers = [2]
mean_ms = 8
law = "constant"
"""


@pytest.mark.parametrize(
    ("rule", "compress"),
    [
        pytest.param(rule, compress, marks=() if (number + at) % len(SELECTING) == 0 else pytest.mark.long)
        for number, rule in enumerate(RULES)
        for at, compress in enumerate(SELECTING)
    ],
)
def test_unselected_blocks_are_pending_and_never_late(tmp_path: Path, rule: str, compress: str) -> None:
    """k = 2 of 3, and the third worker is always late."""
    given = {"objective": "fixed:2", "rule": rule, "weight": 0.5, "iterations": ITERATIONS}
    path = written(tmp_path, f"{LATE}[compress]\n{compress}\n", **given)  # type: ignore[arg-type]
    path.write_text(path.read_text().replace("words = 2", "words = 1").replace("hidden = [16]", "hidden = [64]"))
    run = Trained(Config.load(path), tmp_path / "out").run()
    run.check()
    accounts = [model.encoder.ledger.accounts.account() for model in run.models]
    for rank in (0, 1):
        of, entered = lines(run, rank, "wire_bytes"), accounts[rank].entered
        late = sum(line["late"] for line in lines(run, rank, "late")) + max(0.0, entered - ITERATIONS)
        planned = sum((line["blocks"] + 1) * WORD_BYTES for line in of if line["blocks"])  # with the summary block
        sent = sum(line["wire_bytes"] or 0 for line in of)
        counted = rule in ("async", "batch-sync")  # the third worker's gradients count, or each worker has several
        assert sent <= (1.25 * max(1.0, entered / ITERATIONS) if counted else 1.1) * planned
        assert accounts[rank].discarded <= late, "only late gradients may be discarded"
        assert late == 0 or counted
    of_all = sum(account.summed for account in accounts)
    assert abs(accounts[0].summed - accounts[1].summed) / of_all < (0.02 if late == 0 else 0.06), (
        "both workers must have equal shares"
    )
    assert accounts[2].summed > 0 or RULES[rule].discards or RULES[rule].keeps
    assert run.total("retransmissions") <= 0.06 * sum(link.packets for link in run.simulation.uplinks)
