"""The control loop's part of the Status message of common/kofn_common/rpc/kofn.proto."""

import math

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Track
from kofn_controller.policy.control_loop import Change, ControlLoop
from kofn_controller.policy.followers import peers_of
from kofn_controller.policy.objective import EXCLUDED
from kofn_controller.policy.objectives.throughput import throughput_costs


def status_message(control_loop: ControlLoop) -> pb.Status:
    """Return measurements, model and choice of a job."""
    estimate = control_loop.estimate
    peers = peers_of(control_loop.links.slow, control_loop.follows, control_loop.live, control_loop.k)
    return pb.Status(
        workers=control_loop.workers,
        live=int(control_loop.live.sum()),
        k=control_loop.k,
        objective=control_loop.goal.name,
        objective_fault=control_loop.chooser.fault,
        iteration=control_loop.iteration,
        metric=control_loop.metric,
        service_s=estimate.service_s if estimate else 0.0,
        event_s=estimate.event_s if estimate else 0.0,
        hidden_s=estimate.hidden_s if estimate else 0.0,
        time_model=estimate.reason if estimate else "",
        worker=[_worker(control_loop, rank, peer) for rank, peer in enumerate(peers.tolist())],
        expected=_expected(control_loop),
        changes=[_change(change) for change in control_loop.changes],
        overhead_s=control_loop.overhead_s,
        late_gradient=control_loop.late_policy.rule,
        age_weight=control_loop.late_policy.age_weight,
        noise_scale=control_loop.worth_model.noise_scale,
        alignment=control_loop.worth_model.alignment.tolist() if control_loop.worth_model.noise_scale else (),
    )


def _worker(control_loop: ControlLoop, rank: int, peer: int) -> pb.WorkerStatus:
    """Return one worker's measurements and estimate; `peer`: the rank of the worker that sends it results, or -1."""
    estimate, measured = control_loop.estimate, control_loop.measurements
    track = measured.track(rank)
    status = pb.WorkerStatus(
        rank=rank,
        live=bool(control_loop.live[rank]),
        iteration=track.reached,
        lambda_s=_known(estimate.lambda_s[rank]) if estimate else 0.0,
        lambda_low_s=_known(estimate.low_s[rank]) if estimate else 0.0,
        lambda_high_s=_known(estimate.high_s[rank] + estimate.hidden_s) if estimate else 0.0,
        samples=min(int(measured.reports[rank]), measured.window),
        dispersion=_known(estimate.dispersion[rank]) if estimate else 0.0,
        not_poisson=estimate is not None and not estimate.poisson[rank],
        late=track.late,
        late_in_a_row=track.late_in_a_row,
        reports=measured.reports[rank],
        arrivals=track.arrivals,
        last_first_block_s=track.last_first_block_s,
        silent_s=control_loop.silent_s[rank],
        disagreements=measured.views.count[rank],
        disagreement=measured.views.latest[rank],
        share=float(measured.shares[rank]),
        waiting=track.account.waiting,
        late_for=max(0, measured.iteration - track.account.late_since) if track.account.late_since else 0,
        unheard=track.unheard,
        transfer_s=control_loop.links.delays_s[rank],
    )
    if control_loop.links.slow[rank] and track.link_mbps:
        _add_link(status, track, peer)
    return status


def _add_link(worker: pb.WorkerStatus, track: Track, peer: int) -> None:
    """Add a slow link to a worker's status; `peer`: the rank of the worker that sends it results, -1: the switch
    does."""
    worker.link_mbps, worker.link_backlog_s = track.link_mbps, track.link_backlog_s
    if peer >= 0:
        worker.peer = peer
    delay_ms, backlog_ms = 1e3 * worker.transfer_s, 1e3 * track.link_backlog_s
    words = [
        f"its slow link passes {track.link_mbps:.3g} Mbit/s, which delays a gradient by {delay_ms:.0f} ms",
        f"packets wait {backlog_ms:.0f} ms in the link",
        f"results come from {f'worker {peer}' if peer >= 0 else 'the switch'}",
    ]
    if worker.late_in_a_row:
        words.append(f"late by its {'link' if 2 * worker.transfer_s > worker.lambda_s else 'blocking'}")
    worker.link = "; ".join(words)


def _expected(control_loop: ControlLoop) -> list[pb.Expected]:
    """Return the times of each possible k, and why the present k is in force; empty before the first choice."""
    if control_loop.choice is None or control_loop.prediction is None:
        return []
    forecast, errors_s = control_loop.choice.forecast, control_loop.prediction.error_s
    rounds_s = throughput_costs(forecast)
    why = _reason_for_k(control_loop)
    rule, excluded = control_loop.late_policy.rule, control_loop.goal.excludes(forecast)
    measured = [control_loop.pace.measured(k, rule) for k in range(1, forecast.workers + 1)]
    return [
        pb.Expected(
            k=k,
            iteration_s=forecast.expected_s[k - 1],
            cost=rounds_s[k - 1],
            in_force=why if k == control_loop.k else "",
            predicted_s=forecast.predicted_s[k - 1],
            predicted_error_s=errors_s[k - 1],
            measured_s=seen.mean_s,
            measured_iterations=seen.iterations,
            worth=forecast.worth[k - 1],
            measured_last=seen.last,
            objective_cost=control_loop.choice.costs[k - 1] / (EXCLUDED if k in excluded else 1),
            excluded=excluded.get(k, ""),
        )
        for k, seen in enumerate(measured, 1)
    ]


def _reason_for_k(control_loop: ControlLoop) -> str:
    """Describe why k is in force."""
    name = control_loop.goal.name
    if name == "all":
        return "all workers"
    if name.startswith("fixed:"):
        return "set by you" if name == f"fixed:{control_loop.k}" else "set by you, fewer live"
    return "the last one, the objective failed" if control_loop.chooser.fault else _chosen(control_loop)


def _chosen(control_loop: ControlLoop) -> str:
    """Describe why the latest choice kept k or chose it."""
    choice = control_loop.choice
    if choice is None or control_loop.k == choice.best:
        return "cheapest"
    if choice.gain <= control_loop.policy.margin:
        return "within the margin of the cheapest"
    return f"k = {choice.best} saves {100 * choice.gain:.0f} +- {100 * choice.gain_error:.0f} %: not sure"


def _change(change: Change) -> pb.Change:
    return pb.Change(
        iteration=change.iteration,
        k=change.k,
        previous_k=change.previous_k,
        reason=change.reason,
        expected_iteration_s=_known(change.expected_s),
        predicted_iteration_s=_known(change.predicted_s),
        late_gradient=change.late_policy.rule,
    )


def _known(value: float) -> float:
    """Return the value; 0 for NaN and infinity, which JSON lacks."""
    return value if math.isfinite(value) else 0.0
