"""Exact in a simulation as in a run: ledger, replicas, sums; and independent of the machine and of
unseeded randomness.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kofn.run.errors import RunError
from kofn.sim.learning import After
from kofn_common.config.late_rules import RULES
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import read_trial
from kofn_common.wire.sizes import PARTS
from kofn_host.arrays import Floats64, Integers, fingerprint
from kofn_host.kernels.sample import norm2
from kofn_host.protocol.results import BlockResults
from kofn_host.training import Aggregate
from kofn_host.training.loop import Work
from kofn_host.workload import Momentum, Perceptron, load_shard
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


def trained(folder: Path, more: str = "", other_scale: int = 0, **given: Any) -> Trained:
    """Run a small simulation to its end."""
    folder.mkdir(exist_ok=True)
    return Trained(Config.load(written(folder, more, **given)), folder / "out", other_scale=other_scale).run()


def lines(run: Trained, rank: int = 0) -> list[dict[str, object]]:
    """Return a worker's lines without the last, which is its summary."""
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


def test_slow_link_slows_all_workers_until_it_recovers(tmp_path: Path) -> None:
    """A packet of two words takes 12 ms at 0.4 Mbit/s each way; the link's bucket passes the first packets at once."""
    run = trained(tmp_path, LINKS, objective="all", iterations=40)
    run.check()
    took_s = {int(str(line["iteration"])): float(str(line["iteration_s"])) for line in lines(run)}
    slow = [took_s[iteration] for iteration in range(12, 20)]
    assert min(slow) > (run.models[0].layout.blocks - 1) * 2 * 8 * 256 / 0.4e6
    assert max(took_s[iteration] for iteration in range(22, 40)) < min(slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "rule"),
    [
        pytest.param("", "stash", id="plain-stash"),
        *(pytest.param("", rule, id=f"plain-{rule}", marks=pytest.mark.long) for rule in RULES if rule != "stash"),
        *(pytest.param(FAULTS + EVENTS, rule, id=f"faults-and-events-{rule}") for rule in RULES),
    ],
)
def test_gradients_are_conserved_and_replicas_identical(
    tmp_path: Path, rule: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers have summed the weight of the sums, which is the mean over the blocks."""
    run = Trained(Config.load(written(tmp_path, more, rule=rule, weight=0.5)), tmp_path / "out")
    held: dict[int, float] = {}
    apply = run.learning.apply

    def noted(aggregate: Aggregate) -> After:
        held[aggregate.iteration] = aggregate.gradients
        return apply(aggregate)

    monkeypatch.setattr(run.learning, "apply", noted)
    run.run().check()
    assert len(held) == run.config.run.max_iterations
    accounts = [model.encoder.ledger.accounts.account() for model in run.models]
    assert sum(account.summed for account in accounts) == pytest.approx(sum(held.values()))
    assert {line["k"] for line in lines(run)} >= ({1, 2, 3} if EVENTS in more else {3})
    lateness = sum(bool(line["late"]) for line in lines(run, 2))
    assert lateness > 0
    ledger = dict(np.load(run.entry.sums(2)))
    account = accounts[2]
    assert account.entered == pytest.approx(account.summed + account.waiting + account.discarded)
    assert ledger["discarded"].any() == (account.discarded > 0)
    if FAULTS in more:
        assert run.total("retransmissions") > 10


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_discarded_where_old_gradients_keep_their_weight(tmp_path: Path, rule: str) -> None:
    """The workers' accounts of summed gradients equal the weights of the sums."""
    run = trained(tmp_path, FAULTS + EVENTS, rule=rule)
    run.check()
    discarded = [dict(np.load(run.entry.sums(rank)))["discarded"].any() for rank in range(3)]
    assert discarded == [rule == "drop"] * 3
    accounts = [model.encoder.ledger.accounts.account() for model in run.models]
    assert [account.discarded > 0 for account in accounts] == discarded


SLOW = """
[[straggler]]
workers = [3]
mean_ms = 60
"""


def with_a_slow_one(folder: Path, rule: str, **given: Any) -> Trained:
    """Return a run of four workers with k = 3, of which one has sixty times the blocking; old gradients keep their
    weight.
    """
    folder.mkdir(exist_ok=True)
    text = written(folder, SLOW, rule=rule, objective="fixed:3", iterations=200, **given).read_text()
    text = text.replace("workers = 3", "workers = 4").replace("[0, 1]\nmean_ms = 2", "[0, 1, 2]\nmean_ms = 1")
    (folder / "slow.toml").write_text(text.replace("[[straggler]]\nworkers = [2]\nmean_ms = 20\n", ""))
    return Trained(Config.load(folder / "slow.toml"), folder / "out")


def waits(run: Trained, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will hold the ages in iterations of the worker's oldest waiting gradient,
    at each iteration.
    """
    model, entered, found = run.models[rank], dict[int, int](), list[int]()
    enter, settle = model.enter, model.encoder.settle

    def noted(work: Work, iteration: int, batch: int, current: int) -> None:
        entered.setdefault(iteration, current)
        enter(work, iteration, batch, current)

    def settled(results: BlockResults, hints: Integers, times: Floats64) -> None:
        settle(results, hints, times)
        oldest = model.encoder.ledger.accounts.account().late_since
        found.append(results.iteration + 1 - entered[oldest] if oldest else 0)

    monkeypatch.setattr(model, "enter", noted)
    monkeypatch.setattr(model.encoder, "settle", settled)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["merge", "async", "batch-sync", "abort"])
def test_slow_workers_gradients_are_in_sums(tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its gradients enter sums soon after their computation: its share is its speed."""
    run = with_a_slow_one(tmp_path, rule)
    waited = waits(run, 3, monkeypatch)
    run.run().check()
    accounts = [model.encoder.ledger.accounts.account() for model in run.models]
    slow = accounts[3]
    assert slow.summed > 0
    assert slow.discarded == 0
    assert slow.entered - slow.summed <= 1, "all gradients but the last one must be in sums"
    assert slow.entered == pytest.approx(run.simulation.first_s / (0.060 + 0.005), rel=0.2), (
        "the slow worker must compute without waiting"
    )
    assert all(account.entered - account.summed <= 2 for account in accounts[:3])
    assert 0 < max(waited) <= 3
    members = [(int(str(line["members"]), 16), line["count"]) for line in lines(run, 3)]
    counted = sum(bitmap >> 3 & 1 and bitmap.bit_count() == count for bitmap, count in members)
    if rule != "batch-sync":  # there the other workers may have several contributions in a sum
        assert counted > 5 if rule == "async" else counted == 0, "only async counts late gradients among the k"


@pytest.mark.slow
def test_stashed_gradients_of_an_always_late_worker_are_in_no_sum(tmp_path: Path) -> None:
    run = with_a_slow_one(tmp_path, "stash").run()
    run.check()
    slow = run.models[3].encoder.ledger.accounts.account()
    assert (slow.summed, slow.waiting, slow.late_since) == (0, slow.entered, 1)
    assert slow.entered > 10


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["merge", "stash"])
def test_too_old_gradients_are_in_no_sum(tmp_path: Path, rule: str) -> None:
    """The slow worker's gradients are more than three iterations old when they come, except a quick one."""
    run = with_a_slow_one(tmp_path, rule, limit=3).run()
    run.check()
    slow = run.models[3].encoder.ledger.accounts.account()
    assert slow.discarded >= slow.entered - 1 > 10
    assert slow.waiting == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=() if rule in ("merge", "async", "drop") else pytest.mark.long) for rule in RULES],
)
def test_slot_with_another_scale_is_followed(tmp_path: Path, rule: str) -> None:
    run = trained(tmp_path, FAULTS, other_scale=3, rule=rule)
    run.check()
    assert run.total("refused") > 10


@pytest.mark.slow
def test_blocks_of_overwritten_slots_come_from_peers(tmp_path: Path) -> None:
    few = FAULTS.replace("drop = 0.03", "drop = 0.15")
    path = written(tmp_path, few, objective="fixed:1", iterations=80)
    path.write_text(path.read_text().replace("words = 2", "words = 2\nslots = 16\nwindow = 8"))
    run = Trained(Config.load(path), tmp_path / "out").run()
    run.check()
    assert run.total("stale") > 0
    assert run.total("peer_fetches") > 0


@pytest.mark.slow
def test_repeated_simulation_is_equal_to_the_byte(tmp_path: Path) -> None:
    first, second = (trained(tmp_path / name, FAULTS + EVENTS) for name in ("first", "second"))
    names = [path.name for path in sorted(first.entry.path.iterdir()) if path.is_file()]
    assert len(names) == 2 * 3 + 1
    for name in names:
        if name.endswith(".npz"):
            ours, theirs = (np.load(run.entry.path / name) for run in (first, second))
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
        else:
            assert (first.entry.path / name).read_bytes() == (second.entry.path / name).read_bytes(), name


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    path = written(tmp_path, iterations=10)
    first = lines(Trained(Config.load(path), tmp_path / "1").run())
    path.write_text(path.read_text().replace("[run]", "[run]\nseed = 7"))
    assert lines(Trained(Config.load(path), tmp_path / "7").run()) != first


@pytest.mark.parametrize("average", ["gradients", "contributors"])
def test_training_equals_numpys(tmp_path: Path, average: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With k = n each average is that of all workers' gradients, and each step the optimizer's, from the same
    parameters.
    """
    path = written(tmp_path, objective="all", iterations=40)
    path.write_text(path.read_text().replace("[model]", f'[model]\naverage = "{average}"'))
    run = Trained(Config.load(path), tmp_path / "out")
    means = averages(run, monkeypatch)
    run.run().check()
    for mean, gradients in replayed(run, means):
        np.testing.assert_allclose(mean, np.mean([gradient for _, gradient in gradients], axis=0), atol=2e-6)
    assert len(means) == 40


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_late_worker_computes_with_the_parameters_of_its_own_iteration(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Trained(Config.load(written(tmp_path, rule=rule, objective="fixed:2", iterations=50)), tmp_path / "out")
    means = averages(run, monkeypatch)
    run.run().check()
    seen = 0
    workers = read_trial(run.entry, 3)
    for iteration, (_, gradients) in enumerate(replayed(run, means)):
        for worker, (loss, gradient) in zip(workers, gradients, strict=True):
            line = worker.iterations[iteration]
            if line.computed:
                assert (line.loss, line.gradient_norm2) == (loss, norm2(gradient))
                seen += line.late
    assert seen > 3 or RULES[rule].gives_up


def averages(run: Trained, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return a list that will hold every iteration's average gradient as it was applied."""
    means: list[np.ndarray] = []
    apply = run.learning.apply

    def noted(aggregate: Aggregate) -> After:
        if aggregate.iteration == len(means) + 1:
            means.append(aggregate.mean.copy())
        return apply(aggregate)

    monkeypatch.setattr(run.learning, "apply", noted)
    return means


def replayed(
    run: Trained, means: list[np.ndarray], batches: int = 1
) -> Iterator[tuple[np.ndarray, list[tuple[float, np.ndarray]]]]:
    """Yield each average with all workers' losses and gradients before it, repeating the steps here.

    `batches`: number of batches of each worker, one after another.
    """
    config = run.config
    model = Perceptron(config.model.hidden, config.run.seed)
    optimizer = Momentum(model.parameters, rate=config.model.learning_rate, momentum=config.model.momentum)
    shards = [load_shard(rank, 3, config.run.seed) for rank in range(3)]
    (worker, *_) = read_trial(run.entry, 3)
    for iteration, mean in enumerate(means, 1):
        drawn = [shard.batch(iteration, config.model.batch, each) for shard in shards for each in range(batches)]
        yield mean, [model.gradient(batch) for batch in drawn]
        optimizer.step(mean)
        assert fingerprint(model.parameters) == worker.iterations[iteration - 1].params


Key = tuple[int, int, int]
"""A gradient: rank, iteration, and number within the iteration."""


class Carried:
    """A separate account of a worker's gradients in each sum, for a model of one block."""

    def __init__(self, run: Trained, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        model, drops = run.models[rank], RULES[run.config.policy.late_gradient].discards
        self.waiting, self.away, self.held = set[Key](), dict[int, set[Key]](), dict[int, set[Key]]()
        enter, encode, encode_part, settle = (
            model.enter,
            model.encoder.slices,
            model.encoder.encode_part,
            model.encoder.settle,
        )

        def entered(work: Work, iteration: int, batch: int, current: int) -> None:
            enter(work, iteration, batch, current)
            if not (drops and current > iteration):
                self.waiting.add((rank, iteration, batch))

        def encoded(iteration: int) -> Iterator[list[int]]:
            slices = list(encode(iteration))
            self._send(0)
            yield from slices

        def encoded_part(iteration: int, open: Collection[int], **which: Any) -> tuple[int, list[int]]:
            part, blocks = encode_part(iteration, open, **which)
            if 0 in blocks:
                self._send(part)
            return part, blocks

        def settled(results: BlockResults, hints: Integers, times: Floats64) -> None:
            settle(results, hints, times)
            (result,) = results
            inside = [keys for part, keys in self.away.items() if result.has(rank, part)]
            left = [keys for part, keys in self.away.items() if not result.has(rank, part)]
            self.held[result.id.iteration] = set[Key]().union(*inside)
            self.waiting = set() if drops else self.waiting.union(*left)
            self.away = {}

        monkeypatch.setattr(model, "enter", entered)
        monkeypatch.setattr(model.encoder, "slices", encoded)
        monkeypatch.setattr(model.encoder, "encode_part", encoded_part)
        monkeypatch.setattr(model.encoder, "settle", settled)

    def _send(self, part: int) -> None:
        self.away[part], self.waiting = self.waiting, set()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("average", ["gradients", "contributors"])
def test_average_is_that_of_the_gradients_in_its_sum(
    tmp_path: Path, average: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum has all gradients that its workers have computed since the last one; or it is divided by the counted
    ones.
    """
    k = 2 if rule == "batch-sync" else 1
    path = written(tmp_path, objective=f"fixed:{k}", rule=rule, iterations=50)
    text = path.read_text().replace("words = 2", "words = 32")  # one block
    path.write_text(text.replace("[model]", f'[model]\naverage = "{average}"'))
    run = Trained(Config.load(path), tmp_path / "out")
    assert run.models[0].layout.blocks == 1
    carried, means = [Carried(run, rank, monkeypatch) for rank in range(3)], averages(run, monkeypatch)
    run.run().check()
    (worker, *_), most, several, old = read_trial(run.entry, 3), 0, 0, 0
    known: dict[Key, np.ndarray] = {}
    for iteration, (mean, gradients) in enumerate(replayed(run, means, PARTS), 1):
        for at, (_, gradient) in enumerate(gradients):
            known[at // PARTS, iteration, at % PARTS] = gradient
        held = set[Key]().union(*(each.held[iteration] for each in carried))
        by = len(held) if average == "gradients" else worker.iterations[iteration - 1].count
        np.testing.assert_allclose(mean, np.sum([known[key] for key in held], axis=0) / by, atol=3e-6)
        most, several = max(most, len(held)), several + any(batch for _, _, batch in held)
        old += any(begun < iteration for _, begun, _ in held)
    assert (old > 0) == (rule != "drop"), "all rules but drop must use late gradients"
    assert most > k or rule == "drop"
    assert (several > 0) == (rule == "batch-sync"), (
        "only batch-sync has several gradients of one worker in an iteration"
    )
    assert run.simulation.controller.control_loop.worth_model.correlation.known, (
        "the controller must learn the number of gradients"
    )


def test_simulation_without_progress_ends(tmp_path: Path) -> None:
    path = written(tmp_path, "[[fault]]\ndrop = 1.0\nworkers = [1]\n", objective="all")
    path.write_text(path.read_text().replace("[run]", "[run]\ntrial_deadline_s = 3"))
    with pytest.raises(RunError, match=r"trial 'all' was not over after 3 s of virtual time .* is in iteration 1"):
        Trained(Config.load(path), tmp_path / "out").run()


def test_target_may_be_a_mean_over_iterations(tmp_path: Path) -> None:
    """All workers end at the same iteration; a single good value does not suffice."""
    ends = {}
    for over in (1, 20):
        config = Config.load(written(tmp_path, iterations=300, target=0.8))
        config = replace(config, run=replace(config.run, accuracy_over=over))
        trained = Trained(config, tmp_path / f"over-{over}").run()
        last = {worker.iterations[-1].iteration for worker in read_trial(trained.entry, config.job.workers)}
        assert len(last) == 1
        (ends[over],) = last
    assert ends[1] + 5 < ends[20] < 300
