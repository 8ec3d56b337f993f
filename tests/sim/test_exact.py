"""What is exact in a simulation as in a run: books, replicas, sums; and that nothing depends on chance or machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from host.aggregate import Aggregate
from host.metrics import fingerprint, norm2
from host.model import Momentum, Perceptron, load_shard
from host.wire import Header
from run.config import Config
from run.errors import RunError
from run.late import RULES
from run.metrics import read_pass
from sim.learning import After
from sim.simulation import Simulation
from tests.sim.lab import Trained, written

FAULTS = """
[[fault]]
drop = 0.03
duplicate = 0.03
corrupt = 0.03
reorder = 0.05
jitter_ms = 2
"""

EVENTS = """
[[event]]
at_iteration = 10
objective = "fixed:1"
[[event]]
at_iteration = 20
objective = "fixed:3"
[[event]]
at_iteration = 30
objective = "fixed:2"
"""


def trained(folder: Path, more: str = "", other_scale: int = 0, **given: object) -> Trained:
    """A small simulation, to its end."""
    folder.mkdir(exist_ok=True)
    return Trained(Config.load(written(folder, more, **given)), folder / "out", other_scale=other_scale).run()  # type: ignore[arg-type]


def lines(run: Trained, rank: int = 0) -> list[dict[str, object]]:
    """A worker's lines without the last, which is its summary."""
    return [json.loads(line) for line in run.entry.metrics(rank).read_text().splitlines()][:-1]


LINKS = """
[network]
link_mbps = 20
[[link]]
workers = [1]
mbps = 0.4
at_iteration = 10
[[link]]
workers = [1]
mbps = 20
at_iteration = 20
after_s = 0.01
"""


def test_a_link_that_slows_down_slows_all_down_until_it_recovers(tmp_path: Path) -> None:
    """A packet of two words lasts 12 ms at 0.4 Mbit/s, each way."""
    run = trained(tmp_path, LINKS, objective="all", iterations=40)
    run.check()
    took_s = {int(str(line["iteration"])): float(str(line["iteration_s"])) for line in lines(run)}
    slow = [took_s[iteration] for iteration in range(12, 20)]
    assert min(slow) > run.students[0].shape.blocks * 2 * 8 * 256 / 0.4e6
    assert max(took_s[iteration] for iteration in range(22, 40)) < min(slow)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("more", ["", FAULTS, EVENTS, FAULTS + EVENTS], ids=["plain", "faults", "events", "both"])
def test_gradients_are_conserved_and_replicas_identical(tmp_path: Path, rule: str, more: str) -> None:
    run = trained(tmp_path, more, rule=rule)
    run.check()
    assert {line["k"] for line in lines(run)} >= ({1, 2, 3} if EVENTS in more else {3})
    lateness = sum(bool(line["late"]) for line in lines(run, 2))
    assert lateness > 0
    books = dict(np.load(run.entry.sums(2)))
    assert books["discarded"].any() == (rule == "drop")
    if FAULTS in more:
        assert run.total("retransmissions") > 10


@pytest.mark.parametrize("rule", RULES)
def test_a_slot_that_sums_at_another_scale_is_followed(tmp_path: Path, rule: str) -> None:
    run = trained(tmp_path, FAULTS, other_scale=3, rule=rule)
    run.check()
    assert run.total("refused") > 10


def test_blocks_whose_slots_were_overwritten_come_from_peers(tmp_path: Path) -> None:
    few = FAULTS.replace("drop = 0.03", "drop = 0.15")
    path = written(tmp_path, few, objective="fixed:1", iterations=80)
    path.write_text(path.read_text().replace("words = 2", "words = 2\nslots = 16\nwindow = 8"))
    run = Trained(Config.load(path), tmp_path / "out").run()
    run.check()
    assert run.total("stale") > 0
    assert run.total("peer_fetches") > 0


def test_the_switch_reports_the_first_contribution_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As p4src/measure.p4: of each worker and iteration once, whatever its block."""
    seen = list[tuple[int, int, str]]()
    monkeypatch.setattr(
        Simulation, "_digest", lambda self, header, verdict: seen.append((header.worker, header.iteration, verdict))
    )
    simulation = trained(tmp_path, iterations=3).simulation
    seen.clear()
    for worker, block, count in ((0, 3, 0), (0, 3, 1), (0, 0, 1), (1, 3, 0), (2, 3, 1), (1, 3, 1), (1, 3, 0)):
        sent = Header(job=1, worker=worker, iteration=99, block=block, slot=block, count=count, part=1 - count, k=2)
        simulation._handle(sent, bytes(256))
    assert seen == [(0, 99, "ADDED"), (2, 99, "ADDED"), (1, 99, "LATE")]


def test_the_same_again_is_the_same_to_the_byte(tmp_path: Path) -> None:
    first, second = (trained(tmp_path / name, FAULTS + EVENTS) for name in ("first", "second"))
    names = [path.name for path in sorted(first.entry.path.iterdir()) if path.is_file()]
    assert len(names) == 2 * 3 + 1
    for name in names:
        if name.endswith(".npz"):
            ours, theirs = (np.load(run.entry.path / name) for run in (first, second))
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
        else:
            assert (first.entry.path / name).read_bytes() == (second.entry.path / name).read_bytes(), name


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    path = written(tmp_path, iterations=10)
    first = lines(Trained(Config.load(path), tmp_path / "1").run())
    path.write_text(path.read_text().replace("[run]", "[run]\nseed = 7"))
    assert lines(Trained(Config.load(path), tmp_path / "7").run()) != first


@pytest.mark.parametrize("average", ["gradients", "contributors"])
def test_everyones_training_is_numpys(tmp_path: Path, average: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """k = n: each average is that of all workers' gradients, and each step the optimizer's, from the same beginning."""
    path = written(tmp_path, objective="all", iterations=40)
    path.write_text(path.read_text().replace("[model]", f'[model]\naverage = "{average}"'))
    run = Trained(Config.load(path), tmp_path / "out")
    means = averages(run, monkeypatch)
    run.run().check()
    for mean, gradients in replayed(run, means):
        np.testing.assert_allclose(mean, np.mean([gradient for _, gradient in gradients], axis=0), atol=2e-6)
    assert len(means) == 40


@pytest.mark.parametrize("rule", RULES)
def test_who_is_late_computes_with_the_parameters_of_its_own_iteration(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Trained(Config.load(written(tmp_path, rule=rule, objective="fixed:2", iterations=50)), tmp_path / "out")
    means = averages(run, monkeypatch)
    run.run().check()
    seen = 0
    workers = read_pass(run.entry, 3)
    for iteration, (_, gradients) in enumerate(replayed(run, means)):
        for worker, (loss, gradient) in zip(workers, gradients, strict=True):
            line = worker.iterations[iteration]
            if line.computed:
                assert (line.loss, line.gradient_norm2) == (loss, norm2(gradient))
                seen += line.late
    assert seen > 3 or rule == "abort"


def averages(run: Trained, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Will hold every iteration's average gradient as it was applied."""
    means: list[np.ndarray] = []
    apply = run.learning.apply

    def noted(aggregate: Aggregate) -> After:
        if aggregate.iteration == len(means) + 1:
            means.append(aggregate.mean.copy())
        return apply(aggregate)

    monkeypatch.setattr(run.learning, "apply", noted)
    return means


def replayed(run: Trained, means: list[np.ndarray]) -> Iterator[tuple[np.ndarray, list[tuple[float, np.ndarray]]]]:
    """Each average, and everybody's loss and gradient with the parameters before it; all steps are taken here again."""
    config = run.config
    model = Perceptron(config.model.hidden, config.run.seed)
    optimizer = Momentum(model.parameters, rate=config.model.learning_rate, momentum=config.model.momentum)
    shards = [load_shard(rank, 3, config.run.seed) for rank in range(3)]
    (worker, *_) = read_pass(run.entry, 3)
    for iteration, mean in enumerate(means, 1):
        yield mean, [model.gradient(shard.batch(iteration, config.model.batch)) for shard in shards]
        optimizer.step(mean)
        assert fingerprint(model.parameters) == worker.iterations[iteration - 1].params


@pytest.mark.parametrize("rule", ["stash", "drop"])
@pytest.mark.parametrize("average", ["gradients", "contributors"])
def test_an_average_is_that_of_the_gradients_in_its_sum(
    tmp_path: Path, average: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """k = 1: all that its workers have computed since they were in one; or that over the number of these workers."""
    path = written(tmp_path, objective="fixed:1", rule=rule, iterations=50)
    text = path.read_text().replace("words = 2", "words = 32")  # one block
    path.write_text(text.replace("[model]", f'[model]\naverage = "{average}"'))
    run = Trained(Config.load(path), tmp_path / "out")
    assert run.students[0].shape.blocks == 1
    means = averages(run, monkeypatch)
    run.run().check()
    workers, most = read_pass(run.entry, 3), 0
    waiting: list[list[np.ndarray]] = [[], [], []]
    for iteration, (mean, gradients) in enumerate(replayed(run, means)):
        lines = [worker.iterations[iteration] for worker in workers]
        held = []
        for rank, (_, gradient) in enumerate(gradients):
            if lines[rank].computed and not (rule == "drop" and lines[rank].late):
                waiting[rank].append(gradient)
            if rank in lines[0].members:
                held += waiting[rank]
                waiting[rank] = []
        by = len(held) if average == "gradients" else len(lines[0].members)
        np.testing.assert_allclose(mean, np.sum(held, axis=0) / by, atol=3e-6)
        most = max(most, len(held))
    assert most > 2 if rule == "stash" else most == 1
    assert run.simulation.controller.decider.progress.correlation.known, "the controller hears how much was in it"


def test_a_simulation_that_cannot_go_on_ends(tmp_path: Path) -> None:
    path = written(tmp_path, "[[fault]]\ndrop = 1.0\nworkers = [1]\n", objective="all")
    path.write_text(path.read_text().replace("[run]", "[run]\npass_deadline_s = 3"))
    with pytest.raises(RunError, match=r"pass 'all' was not over after 3 s of virtual time .* is in iteration 1"):
        Trained(Config.load(path), tmp_path / "out").run()


def test_a_target_may_be_a_mean_over_iterations(tmp_path: Path) -> None:
    """All workers end at the same iteration; a single good one is not enough."""
    ends = {}
    for over in (1, 20):
        config = Config.load(written(tmp_path, iterations=300, target=0.8))
        config = replace(config, run=replace(config.run, accuracy_over=over))
        trained = Trained(config, tmp_path / f"over-{over}").run()
        last = {worker.iterations[-1].iteration for worker in read_pass(trained.entry, config.job.workers)}
        assert len(last) == 1
        (ends[over],) = last
    assert ends[1] + 5 < ends[20] < 300
