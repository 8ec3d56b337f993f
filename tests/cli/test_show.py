"""The command line's output for made-up statuses: widths, words, omissions."""

import io
from typing import Any

import finsy as fy
import pytest
from rich.console import Console, RenderableType

from kofn.cli import show
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.p4runtime.planes.kofn import verdict_names
from kofn_controller.p4runtime.program import CompiledProgram


def worker(rank: int, **fields: Any) -> pb.WorkerStatus:
    """Return a worker with the longest likely numbers."""
    known = {"live": True, "lambda_s": 12.3456, "lambda_low_s": 10.1111, "lambda_high_s": 15.9999, "samples": 1024}
    counts = {
        "dispersion": 10.25,
        "not_poisson": True,
        "late": 123456,
        "late_in_a_row": 12345,
        "reports": 123456,
        "arrivals": 123456,
    }
    return pb.WorkerStatus(**{"rank": rank, **known, **counts, **fields})


def answer(**fields: Any) -> pb.Status:
    workers = [
        worker(0),
        worker(1, silent_s=12.3456),
        worker(62, live=False),
        worker(63, lambda_s=0.06, not_poisson=False),
    ]
    told = {"job": 255, "workers": 4, "live": 4, "k": 2, "objective": "fixed:2", "iteration": 123456, "uptime_s": 7200}
    model = {"service_s": 0.01029, "event_s": 0.00568, "switch_address": "127.0.0.1:50051", "switch_connected": True}
    rest = {"worker": workers, "counters": {"ADDED": 1234567, "LATE": 12345, "CLOSED": 0}}
    return pb.Status(**{**told, **model, **rest, **fields})


def printed(rendered: RenderableType, *, width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(rendered)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_slow_link_has_a_line_below_the_table() -> None:
    lines = printed(show.status(answer(worker=[worker(0), worker(1, link="its slow link passes 9.8 Mbit/s")])))
    assert lines[-1] == "worker 1: its slow link passes 9.8 Mbit/s"


def test_terminal_of_80_columns_shows_one_line_a_worker() -> None:
    lines = printed(show.status(answer()))
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    header = next(number for number, line in enumerate(lines) if line.startswith("worker"))
    assert lines[header].split() == ["worker", "lambda", "ms", "95", "%", "interval", "var/mean", "late", "share"]
    assert [line.split()[0] for line in lines[header + 1 :]] == ["0", "1", "62", "63"]
    assert [line.rsplit(" %", 1)[1].strip() for line in lines[header + 1 :]] == [
        "not Poisson",
        "silent 12346 ms",
        "not live",
        "",
    ]
    assert lines[0].endswith("up 7200 s")
    assert "packets: ADDED=1,234,567 LATE=12,345" in lines


def test_table_of_ks_fits_80_columns() -> None:
    forecast = [
        pb.Expected(k=k, iteration_s=9.0 * k, predicted_s=10.0 * k, cost=64 * 10.0, measured_s=11.0 * k)
        for k in range(1, 65)
    ]
    forecast[1].in_force = "set by you, fewer live"
    forecast[2].measured_s = 0.0
    lines = printed(show.k_choice(answer(expected=forecast, overhead_s=0.0042)))
    assert max(map(len, lines)) <= 80
    assert lines[0] == "s (block time without blocking) 10.29 ms, tau (one blocking event) 5.68 ms"
    assert lines[1].split() == ["k", "E_k[T]", "x", "n/k", "predicted", "measured"]
    assert [line.split()[0] for line in lines[2:66]] == [str(k) for k in range(1, 65)]
    assert lines[3].split()[:5] == ["2", "18000", "640000", "20000", "22000"]
    assert lines[3].endswith("<- in force (set by you, fewer live)")
    assert lines[4].split() == ["3", "27000", "640000", "30000", "-"]
    legend = " ".join(lines[66:])
    assert "x n/k: E_k[T] for one round of all blocks; it decides under objective 'throughput'." in legend
    assert (
        "measured: from iteration to iteration, under the rule in force, with 4.20 ms of transfer and step." in legend
    )


def test_time_model_and_hidden_blocking_are_shown() -> None:
    told = answer(time_model="own distributions: blocking is not Poisson's (p = 0.01)", hidden_s=0.004)
    lines = printed(show.lambdas(told))
    assert lines[1] == "up to 4.00 ms of s may be blocking that is always there"
    assert lines[2] == "time model: own distributions: blocking is not Poisson's (p = 0.01)"


def test_excluded_k_and_old_measurements_are_marked() -> None:
    forecast = [
        pb.Expected(k=1, objective_cost=0.3, worth=0.5, measured_s=0.1, measured_iterations=9, measured_last=120),
        pb.Expected(k=2, objective_cost=0.2, worth=0.9, measured_s=0.1, measured_iterations=9, measured_last=480),
        pb.Expected(k=3, objective_cost=0.1, worth=1.0, excluded="slow ones would be in no sum"),
    ]
    said = printed(show.k_choice(answer(expected=forecast, objective="progress", iteration=500)), width=200)
    assert said[2].endswith("300  (measured until iteration 120)")
    assert said[3].endswith("200  (cheapest)")
    assert said[4].endswith("100  (excluded: slow ones would be in no sum)")


@pytest.mark.parametrize(("previous", "words"), [(3, "k 3 -> 2 (why)"), (2, "rule async, k stays 2 (why)")])
def test_change_is_of_k_or_of_the_rule(previous: int, words: str) -> None:
    change = pb.Change(iteration=7, k=2, previous_k=previous, late_gradient="async", reason="why")
    assert f"iteration 7: {words}" in "\n".join(printed(show.status(answer(changes=[change]))))


def test_deciding_column_is_named() -> None:
    forecast = [pb.Expected(k=1, iteration_s=0.1, predicted_s=0.2, cost=0.2)]
    lines = printed(show.k_choice(answer(expected=forecast, objective="throughput")), width=200)
    assert "all blocks; it decides. predicted: late" in " ".join(lines)


def test_wide_shows_every_column() -> None:
    header = printed(show.lambdas(answer(), wide=True), width=140)[1]
    assert header.endswith("late  share  samples  in a row  pending  age  reports  arrivals")


def test_lines_are_not_wrapped_without_a_terminal() -> None:
    reason = " ".join(["one word after another"] * 20)
    change = pb.Change(iteration=7, k=3, previous_k=4, reason=reason)
    file = io.StringIO()
    show.output(file, show.status(answer(changes=[change])))
    assert f"iteration 7: k 4 -> 3 ({reason})" in file.getvalue()
    assert not any(line.endswith(" ") for line in file.getvalue().splitlines())


@pytest.mark.parametrize(("disagreements", "reports", "told"), [(1, 2, False), (5, 100, False), (6, 100, True)])
def test_disagreements_are_shown_where_they_are_frequent(disagreements: int, reports: int, told: bool) -> None:
    status = answer(worker=[worker(1, reports=reports, disagreements=disagreements, disagreement="iteration 9: ...")])
    times = "1 disagreement" if disagreements == 1 else f"{disagreements} disagreements"
    note = f"worker 1: {times} with the switch in {reports} reports; iteration 9: ..."
    assert (note in printed(show.lambdas(status))) is told
    assert note in printed(show.lambdas(status, wide=True), width=140)


def test_lost_worker_is_in_the_first_line() -> None:
    assert "k = 2 of 3 live workers (n = 4)," in printed(show.status(answer(live=3)))[0]


def test_dropped_packets_are_counted_by_reason() -> None:
    counters = {
        "ADDED": 5,
        "NOT_READY": 1,
        "FULL": 2,
        "WRONG_PORT": 3,
        "OLD_GENERATION": 1200,
        "BAD_KIND": 0,
        "LATE": 0,
    }
    lines = printed(show.status(answer(counters=counters)))
    assert "packets: ADDED=5 FULL=2 NOT_READY=1" in lines
    assert "dropped: OLD_GENERATION=1,200 WRONG_PORT=3" in lines
    assert not any(line.startswith("dropped") for line in printed(show.status(answer())))


def test_verdicts_that_are_no_drops_are_the_programs() -> None:
    verdicts = set(verdict_names(fy.P4Schema(CompiledProgram().p4info)).values())
    assert verdicts > show.ADMITTED
    reasons = {
        "WRONG_PORT",
        "UNKNOWN_JOB",
        "BAD_KIND",
        "BAD_VERSION",
        "BAD_LENGTH",
        "BAD_PART",
        "BAD_COUNT",
        "BAD_CHECKSUM",
        "OLD_GENERATION",
    }
    assert reasons < verdicts - show.ADMITTED


def test_wait_and_other_jobs_are_shown() -> None:
    waiting = answer(waiting="regrouping: waiting for worker 2 since 3 s", jobs=[7, 255, 9], generation=1, regroups=2)
    lines = printed(show.status(waiting), width=100)
    assert lines[1:3] == [
        "other jobs of this controller (--job): 7, 9",
        "waiting: regrouping: waiting for worker 2 since 3 s",
    ]
    assert lines[3] == "switch 127.0.0.1:50051: connected, generation 1, regrouped 2 times"
    assert show.line(waiting).endswith("; waiting: regrouping: waiting for worker 2 since 3 s")


def test_switches_of_a_tree_are_named() -> None:
    tree = [
        pb.TreeSwitch(name=name, address=f"127.0.0.1:{50051 + number}", connected=name != "leaf-0")
        for number, name in enumerate(("root", "leaf-0", "leaf-1"))
    ]
    lines = printed(show.status(answer(tree=tree, generation=7)))
    begin = lines.index("tree of 3 switches, generation 7")
    assert lines[begin + 1 : begin + 4] == [
        "  root 127.0.0.1:50051: connected",
        "  leaf-0 127.0.0.1:50052: NOT CONNECTED",
        "  leaf-1 127.0.0.1:50053: connected",
    ]


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"state": "lost", "live": False}, "lost"),
        ({"state": "joining", "live": False, "attachments": 2}, "joining"),
        ({"state": "training", "attachments": 3}, "attached 3 times"),
        ({"state": "training", "attachments": 1}, ""),
        ({"state": "training", "unheard": 7, "share": 0.01}, ""),
        ({"state": "training", "unheard": 8, "silent_s": 1.0}, "STARVED: 8 in no sum"),
    ],
)
def test_state_of_a_worker_is_its_remark(fields: dict[str, object], remark: str) -> None:
    lines = printed(show.lambdas(answer(worker=[worker(0, **{"not_poisson": False, **fields})])))
    assert lines[-1].rsplit(" %", 1)[1].strip() == remark


def test_interval_without_an_upper_end_is_marked() -> None:
    lines = printed(show.lambdas(answer(worker=[worker(0, lambda_s=0.014, lambda_low_s=0.0, lambda_high_s=0.0)])))
    assert any("0.00 .. ?" in line for line in lines)


def test_many_workers_fit_24_lines_and_omitted_ones_are_named() -> None:
    many = [worker(rank, lambda_s=0.001 * (rank % 8)) for rank in range(64)]
    changes = [pb.Change(iteration=7 * one, k=3, previous_k=4, reason="cheapest") for one in range(9)]
    lines = printed(show.status(answer(worker=many, workers=64, changes=changes), lines=24))
    assert len(lines) <= 24
    ranks = [int(line.split()[0]) for line in lines if line.endswith("not Poisson")]
    assert ranks == sorted([6, *range(7, 64, 8)]), "the nine slowest workers are shown"
    assert "workers 0-5, 8-14, 16-22, 24-30, 32-38, 40-46, 48-54, 56-62: lambda 6.00 ms at" in lines
