"""The newest frame of each job of a run as Prometheus metrics."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kofn.web.frames import Frame
from kofn.web.reader import RunReader

Gauge = tuple[str, str, str, float]
"""A metric's name, its help, the field of a frame, and the factor from the field's unit to the metric's unit."""

PER_JOB: tuple[Gauge, ...] = (
    ("kofn_trial", "Number of the trial, from 0 on.", "trial", 1),
    ("kofn_iteration", "Newest iteration that a worker has finished.", "iteration", 1),
    ("kofn_k", "Workers that a sum waits for.", "k", 1),
    ("kofn_metric", "Metric of the workload; for digits the accuracy, 0 to 1.", "accuracy", 1),
    ("kofn_loss", "Loss at the worker that finished the iteration first.", "loss", 1),
    ("kofn_iteration_seconds", "Mean time of the latest 20 iterations.", "iteration_ms", 1e-3),
    ("kofn_predicted_iteration_seconds", "Predicted iteration time with this k.", "predicted_ms", 1e-3),
)

PER_WORKER: tuple[Gauge, ...] = (
    ("kofn_worker_iteration", "Newest iteration that the worker has finished.", "iteration", 1),
    ("kofn_worker_blocking_seconds", "Estimated mean blocking time.", "lambda_ms", 1e-3),
    ("kofn_worker_blocking_low_seconds", "Lower end of the estimate's 95 % interval.", "low_ms", 1e-3),
    ("kofn_worker_blocking_high_seconds", "Upper end of the estimate's 95 % interval.", "high_ms", 1e-3),
    ("kofn_worker_injected_seconds", "Injected mean blocking time.", "injected_ms", 1e-3),
    ("kofn_worker_late_ratio", "Share of the worker's latest 50 gradients that were late.", "late_share", 1),
    ("kofn_worker_share_ratio", "Share of the gradients in all sums.", "share", 1),
)


class RunCollector(Collector):
    """The metrics of a run; unknown metrics are left out."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        frames = list(self._reader.newest.values())
        for name, text, field, unit in PER_JOB:
            gauge = GaugeMetricFamily(name, text, labels=["job"])
            _add(gauge, [([str(frame.job)], getattr(frame, field)) for frame in frames], unit)
            yield gauge
        for name, text, field, unit in PER_WORKER:
            gauge = GaugeMetricFamily(name, text, labels=["job", "worker"])
            _add(gauge, _of_workers(frames, field), unit)
            yield gauge
        words = "Iterations in which the worker was late."
        late = CounterMetricFamily("kofn_worker_late_iterations", words, labels=["job", "worker"])
        _add(late, _of_workers(frames, "late"))
        yield late
        link = CounterMetricFamily("kofn_link_bytes", "Bytes over a link.", labels=["job", "worker", "direction"])
        for field, direction in (("sent_bytes", "to_switch"), ("received_bytes", "from_switch")):
            _add(link, [([*labels, direction], value) for labels, value in _of_workers(frames, field)])
        yield link
        packets = CounterMetricFamily("kofn_packets", "Packets at the switch.", labels=["verdict"])
        _add(packets, [([verdict], count) for frame in frames[:1] for verdict, count in frame.packets.items()])
        yield packets
        slots = GaugeMetricFamily("kofn_slots", "Slots in the latest sample.", labels=["job", "state"])
        for frame in frames:
            for state, closed in (("open", False), ("closed", True)):
                if frame.slots is not None:
                    slots.add_metric([str(frame.job), state], sum(slot.closed == closed for slot in frame.slots))
        yield slots


def exposition(reader: RunReader) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(RunCollector(reader))
    return generate_latest(registry)


def _add(
    family: GaugeMetricFamily | CounterMetricFamily, values: Sequence[tuple[list[str], float | None]], unit: float = 1
) -> None:
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, unit * value)


def _of_workers(frames: Sequence[Frame], field: str) -> list[tuple[list[str], float | None]]:
    return [
        ([str(frame.job), str(worker.rank)], getattr(worker, field)) for frame in frames for worker in frame.workers
    ]
