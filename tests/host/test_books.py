"""Fixed point, residuals, model, stragglers: what a worker computes before anything is sent."""

import subprocess
import sys
import time
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import host.residual
from host.compress import FRACTION_BITS, FixedPoint, to_fixed
from host.errors import BooksError, GradientError, ProtocolError
from host.history import BlockId, Result
from host.model import Momentum, Perceptron, load_shard
from host.pages import Pages
from host.stragglers import Blocking
from host.wire import GRADIENTS_MAX
from run.config import Config, Job, Run, Straggler
from run.config import Shard as ClassShard
from tests.host.lab import books_of, send, send_again, sent_gradients

CODEC = FixedPoint(workers=4, gradient_range=16.0)

GRADIENTS = arrays(np.float32, 16, elements=st.floats(-1000, 1000, width=32))


def result(iteration: int, block: int, members: int) -> Result:
    count = members.bit_count()
    return Result(
        id=BlockId(iteration, block), scale=0, lanes=0, k=1, count=count, gradients=count, members=members, values=b""
    )


@given(st.lists(GRADIENTS, min_size=1, max_size=8), st.integers(1, 64), st.booleans(), st.data())
def test_conservation_is_exact_whatever_is_counted(gradients, workers, drop, data):
    codec = FixedPoint(workers=workers, gradient_range=16.0)
    residual = books_of(Pages.in_memory(blocks=2, lanes=8), codec, 3, drop=drop)
    counted, discarded = np.zeros((2, 2, 8), np.int64)
    waiting = [0, 0]  # gradients of each block
    for iteration, gradient in enumerate(gradients, 1):
        residual.add(gradient, iteration)
        send(residual, iteration, codec)
        found = list[Result]()
        for block in range(2):
            waiting[block] += 1
            assert sent_gradients(residual, block) == waiting[block]
            members = data.draw(st.sampled_from([0b1000, 0b0100]))
            counted[block] += codec.decode(residual.sent[block], codec.exponent, 1) * (members == 0b1000)
            discarded[block] += to_fixed(gradient).reshape(2, 8)[block] * (drop and members == 0b0100)
            found.append(result(iteration, block, members))
            waiting[block] = 0 if members == 0b1000 else waiting[block] - drop
        for together in data.draw(st.sampled_from([[found], [found[:1], found], [found[1:], found[:1], found]])):
            residual.settle(*together)
        assert residual.pending_gradients.tolist() == waiting, "what rounding left over is no gradient"
    books = residual.books()
    assert books.conserved
    assert np.array_equal(books.gradients, sum(to_fixed(gradient) for gradient in gradients))
    assert np.array_equal(books.counted, counted.ravel())
    assert np.array_equal(books.discarded, discarded.ravel()), "the late blocks of single gradients, nothing else"


DYING = """
import sys, numpy as np
from pathlib import Path
from host.compress import FixedPoint
from host.history import BlockId, Result
from host.pages import Pages
from host.residual import Residual

def settle(block):
    members = 4 if block % 2 else 8
    id = BlockId(iteration, block)
    scale = codec.exponent
    residual.settle(Result(id=id, scale=scale, lanes=0, k=1, count=1, gradients=1, members=members, values=b""))

pages = Pages.in_file(Path(sys.argv[1]), job=1, rank=2, blocks=64, lanes=64)
codec = FixedPoint(workers=1, gradient_range=2.0**20)
residual = Residual(pages, 2, {0: codec}, drop=sys.argv[2] == "drop")
iteration, everything, scales = max(1, residual.begun), np.arange(64), np.full(64, codec.exponent)
gradient = np.ones(64 * 64, np.float32)
print("up", flush=True)
while True:
    residual.begin(iteration)
    for block in range(0, 32, 2):
        settle(block)
    for blocks in everything[::3], None:
        residual.add(gradient, iteration, blocks)
    residual.sending(iteration, everything, 0, scales)
    for block in range(64):
        settle(block)
    iteration += 1
"""


@pytest.mark.parametrize("late", ["stash", "drop"])
def test_books_survive_a_kill_at_any_moment(tmp_path, late):
    """Of each block all is counted, or discarded, or nothing; even blocks always come too late."""
    path, before = tmp_path / "worker.books", 0
    for delay_ms in (0, 1, 7, 12, 20):
        with subprocess.Popen([sys.executable, "-c", DYING, path, late], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(delay_ms / 1000)
            process.kill()
        pages = Pages.in_file(path, job=1, rank=2, blocks=64, lanes=64)
        residual = books_of(pages, FixedPoint(workers=1, gradient_range=2.0**20), 2, drop=late == "drop")
        assert residual.begun >= before
        unsettled = residual.unsettled(residual.begun)
        for block in range(64):
            if block % 2 == 0 or block in unsettled:
                residual.settle(result(residual.begun, block, 0b100 if block % 2 else 0b1000))
        assert residual.unsettled(residual.begun) == []
        books = residual.books()
        gradients, counted, out, left = (
            part.reshape(64, 64) for part in (books.gradients, books.counted, books.discarded, books.pending)
        )
        assert books.conserved
        assert np.array_equal(left[:, 0], residual.pending_gradients << FRACTION_BITS), "each gradient is all ones"
        assert np.all(counted == counted[:, :1]), "a block is counted whole"
        assert not counted[::2].any()
        assert not out[1::2].any()
        kept, none = (left, out) if late == "stash" else (out, left)
        assert np.array_equal(kept[::2], gradients[::2]), "a late block is stashed, or discarded, whole"
        assert not none[::2].any()
        before = residual.begun
    assert before > 10


def live(pages, last):
    """A worker that drops: from wherever its books are to the end of iteration `last`, as an agent would.

    Gradients are entered in two parts, of which a kill may leave the first.
    Block 0 is always counted, 1 closes before the gradient is there, 2 when it was sent, 3 like 0 and 2 by turns.
    """
    codec = FixedPoint(workers=4, gradient_range=16.0)
    residual = books_of(pages, codec, drop=True)
    for iteration in range(max(residual.begun, 1), last + 1):
        residual.begin(iteration)
        residual.settle(result(iteration, 1, 0b10))
        gradient = np.random.default_rng(iteration).normal(size=8).astype(np.float32)
        for blocks in np.array([2, 1]), None:
            residual.add(gradient, iteration, blocks)
        send(residual, iteration, codec)
        for block, members in ((0, 0b01), (2, 0b10), (3, 0b01 + iteration % 2)):
            residual.settle(result(iteration, block, members))
    return residual.books()


def copied(pages):
    return Pages(**{field.name: getattr(pages, field.name).copy() for field in fields(pages)})


def moments(pages, act):
    """What a kill would leave: copies of the books before every line of host/residual.py that `act` runs."""
    found = []

    def trace(frame, event, _):
        if frame.f_code.co_filename == host.residual.__file__:
            if event == "line":
                found.append(copied(pages))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return found


def test_what_is_discarded_survives_a_kill_before_any_line():
    pages = Pages.in_memory(blocks=4, lanes=2)
    found = moments(pages, lambda: live(pages, 3))
    whole = live(pages, 3)
    assert whole.conserved
    assert len(found) > 100
    for moment in found:
        died = books_of(copied(moment), CODEC, drop=True)
        for block in (1, 2):
            if died.begun:
                died.settle(result(died.begun, block, 0b10))
        books = died.books()
        assert books.conserved
        late = slice(2, 6)
        assert np.array_equal(books.discarded[late], books.gradients[late]), "who goes on later has discarded it all"
        again = live(moment, 3)
        for name in ("gradients", "counted", "pending", "discarded"):
            assert np.array_equal(getattr(again, name), getattr(whole, name)), f"who goes on there has other {name}"


ONES = np.ones(8, np.float32)


def live_on_ones(pages, last, *, drop):
    """As above, with gradients of ones, so that values say how many are in them; block 3 is taken back."""
    codec = FixedPoint(workers=4, gradient_range=16.0)
    residual = books_of(pages, codec, drop=drop)
    for iteration in range(max(residual.begun, 1), last + 1):
        residual.begin(iteration)
        residual.settle(result(iteration, 1, 0b10))
        for blocks in np.array([2, 1]), None:
            residual.add(ONES, iteration, blocks)
        send(residual, iteration, codec)
        for block in (0, 2, 3):
            assert sent_gradients(residual, block) == residual.sent[block, 0] >> codec.exponent
        for block, members in ((0, 0b01), (2, 0b10), (3, 0b01 + iteration % 2)):
            residual.settle(result(iteration, block, members))
        residual.reconcile(result(iteration, 3, 0b10))
    return residual


@pytest.mark.parametrize(("drop", "left"), [(False, [0, 4, 4, 4]), (True, [0, 0, 0, 2])])
def test_how_many_gradients_are_pending_survives_a_kill_before_any_line(drop, left):
    """Who goes on after the third iteration has what all its blocks hold: at once, and after the next one."""
    pages = Pages.in_memory(blocks=4, lanes=2)
    found = moments(pages, lambda: live_on_ones(pages, 4, drop=drop))
    assert books_of(pages, CODEC, drop=drop).pending_gradients.tolist() == left
    assert len(found) > 100
    for moment in found:
        died = books_of(copied(moment), CODEC, drop=drop)
        assert np.array_equal(died.pending, np.repeat(died.pending_gradients << FRACTION_BITS, 2).reshape(4, 2))
        assert live_on_ones(moment, 4, drop=drop).pending_gradients.tolist() == left


def test_a_contribution_says_at_least_one_gradient_and_at_most_what_fits_a_sum():
    codec = FixedPoint(workers=64, gradient_range=2.0**20)
    residual = books_of(Pages.in_memory(blocks=1, lanes=8), codec)
    for iteration in range(1, GRADIENTS_MAX + 10):
        residual.add(ONES, iteration)
        send(residual, iteration, codec)
        assert sent_gradients(residual, 0) == min(iteration, GRADIENTS_MAX)
        residual.settle(result(iteration, 0, 0b10))
    assert 64 * sent_gradients(residual, 0) < 2**16
    residual.add(ONES, GRADIENTS_MAX + 10)
    send(residual, GRADIENTS_MAX + 10, codec)
    residual.settle(result(GRADIENTS_MAX + 10, 0, 0b1))
    assert residual.pending_gradients.tolist() == [0], "all are counted, whatever number was said"
    closed = books_of(Pages.in_memory(blocks=1, lanes=8), codec, drop=True)
    closed.settle(result(1, 0, 0b10))
    closed.add(ONES, 1)
    send(closed, 1, codec)
    assert (closed.pending_gradients.tolist(), sent_gradients(closed, 0)) == ([0], 1)


def test_a_result_that_the_others_made_again_without_this_worker_is_taken_back():
    codec = FixedPoint(workers=4, gradient_range=16.0)
    residual = books_of(Pages.in_memory(blocks=2, lanes=8), codec)
    for iteration in (1, 2):
        residual.add(np.arange(16, dtype=np.float32), iteration)
        send(residual, iteration, codec)
        for block in range(2):
            residual.settle(result(iteration, block, 0b11))
    before = residual.books()
    for same in (result(2, 0, 0b11), result(1, 1, 0b10), result(3, 1, 0b10)):
        residual.reconcile(same)
    assert np.array_equal(residual.books().counted, before.counted), "the same, an older one, one to come"
    for _ in range(2):
        residual.reconcile(result(2, 1, 0b10))
    after = residual.books()
    assert after.conserved
    assert np.array_equal(after.counted[:8], before.counted[:8])
    assert np.array_equal(after.counted[8:], before.counted[8:] // 2)
    assert residual.pending_gradients.tolist() == [0, 1]


def test_who_encodes_again_after_something_was_taken_back_says_how_many_gradients_that_is():
    """It died in the second iteration; the others had made the first one's result again, and refuse its scale now."""
    pages, codec = Pages.in_memory(blocks=1, lanes=8), FixedPoint(workers=4, gradient_range=16.0)
    residual = books_of(pages, codec)
    residual.add(ONES, 1)
    send(residual, 1, codec)
    residual.settle(result(1, 0, 0b1))
    residual.add(ONES, 2)
    send(residual, 2, codec)
    again = books_of(pages, codec)
    again.reconcile(result(1, 0, 0b10))
    send(again, 2, codec)
    assert (sent_gradients(again, 0), again.sent[0, 0] >> codec.exponent) == (1, 1), "the switch may hold it"
    send_again(again, 0, 2, codec, codec.exponent - 1)
    assert (sent_gradients(again, 0), again.sent[0, 0] >> codec.exponent - 1) == (2, 2)
    again.settle(result(2, 0, 0b1))
    assert again.pending_gradients.tolist() == [0]
    assert not again.pending.any()


def test_what_is_taken_back_is_pending_and_never_discarded():
    pages, codec = Pages.in_memory(blocks=1, lanes=8), FixedPoint(workers=4, gradient_range=16.0)
    residual = books_of(pages, codec, drop=True)
    residual.add(np.ones(8, np.float32), 1)
    send(residual, 1, codec)
    residual.settle(result(1, 0, 0b1))
    residual.reconcile(result(1, 0, 0b10))
    for books in (residual.books(), books_of(pages, codec, drop=True).books()):
        assert np.array_equal(books.pending, books.gradients)
        assert not books.discarded.any()


def test_books_of_others_are_refused(tmp_path):
    path = tmp_path / "books"
    Pages.in_file(path, job=1, rank=2, blocks=3, lanes=64)
    with pytest.raises(BooksError, match=r"job and rank 1, 2; 3 blocks of 64 lanes.*not those of job 1, rank 1"):
        Pages.in_file(path, job=1, rank=1, blocks=3, lanes=64)
    with pytest.raises(BooksError, match="No such file"):
        Pages.in_file(tmp_path / "none" / "books", job=1, rank=1, blocks=3, lanes=64)


def test_a_restart_sends_what_was_sent(tmp_path):
    """Whatever is added to the books later: the switch may hold the first contribution already."""
    codec = FixedPoint(workers=4, gradient_range=16.0)
    first = books_of(Pages.in_file(tmp_path / "b", job=1, rank=0, blocks=2, lanes=8), codec)
    first.begin(5)
    first.add(np.arange(16, dtype=np.float32), 5)
    send(first, 5, codec)
    sent = first.sent.copy()
    again = books_of(Pages.in_file(tmp_path / "b", job=1, rank=0, blocks=2, lanes=8), codec)
    again.begin(4)  # a peer whose replica it takes may be behind
    assert (again.begun, again.entered, again.unsettled(5)) == (5, 5, [0, 1])
    again.settle(result(5, 1, 0b1))
    again.add(np.ones(16, np.float32), 5)
    send(again, 5, codec)
    assert np.array_equal(again.sent, sent)
    again.settle(result(5, 0, 0b1))
    assert again.books().conserved
    with pytest.raises(ProtocolError, match="which sent none"):
        again.settle(result(6, 0, 0b1))


@given(st.integers(1, 64), st.floats(0.001, 1000), arrays(np.int64, 32, elements=st.integers(-(2**60), 2**60)))
def test_lanes_of_n_addends_never_overflow(workers, gradient_range, values):
    codec = FixedPoint(workers=workers, gradient_range=gradient_range)
    lanes = codec.encode(values, codec.exponent)
    assert np.abs(lanes.astype(np.int64)).max() * workers < 2**31


def test_rounding_leaves_at_most_half_a_step():
    codec = FixedPoint(workers=4, gradient_range=64.0)
    values = to_fixed(np.linspace(-3, 3, 1001, dtype=np.float32))
    left = values - codec.decode(codec.encode(values, codec.exponent), codec.exponent, 1)
    assert np.abs(left).max() <= 1 << (FRACTION_BITS - codec.exponent - 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**21])
def test_bad_gradients_never_reach_the_wire(bad):
    gradient = np.array([0.5, bad], np.float32)
    with pytest.raises(GradientError, match="gradient element 1 is"):
        to_fixed(gradient)


def test_gradient_is_the_slope_of_the_loss():
    model = Perceptron((8, 6), seed=0)
    batch = load_shard(0, 4, seed=1).batch(1, 16)
    _, gradient = model.gradient(batch)
    for element in np.argsort(-np.abs(gradient))[:10]:
        original = model.parameters[element]
        losses = []
        for step in (2e-3, -2e-3):
            model.parameters[element] = original + step
            losses.append(model.gradient(batch)[0])
        model.parameters[element] = original
        assert gradient[element] == pytest.approx((losses[0] - losses[1]) / 4e-3, rel=0.03)


def test_shards_share_the_held_out_images_and_nothing_else():
    shards = [load_shard(rank, 3, seed=7) for rank in range(3)]
    assert sum(len(shard.train.labels) for shard in shards) + len(shards[0].held_out.labels) == 1797
    assert all(np.array_equal(shard.held_out.images, shards[0].held_out.images) for shard in shards)
    assert np.array_equal(shards[0].batch(5, 8).labels, load_shard(0, 3, seed=7).batch(5, 8).labels)
    assert not np.array_equal(shards[0].batch(5, 8).images, shards[0].batch(6, 8).images)


def test_classes_that_one_worker_alone_holds():
    owned = (ClassShard(worker=1, classes=(8, 9)), ClassShard(worker=3, classes=(0,)))
    shards = [load_shard(rank, 5, 7, owned) for rank in range(5)]
    held = [set(shard.train.labels.tolist()) for shard in shards]
    assert held == [set(range(1, 8)), {8, 9}, set(range(1, 8)), {0}, set(range(1, 8))]
    sizes = [len(shard.train.labels) for shard in shards]
    assert sum(sizes) + len(shards[0].held_out.labels) == 1797
    assert max(sizes[::2]) - min(sizes[::2]) <= 1
    assert len(np.unique(np.concatenate([shard.train.images for shard in shards]), axis=0)) == sum(sizes)
    assert np.array_equal(shards[0].held_out.images, load_shard(0, 5, seed=7).held_out.images)


def test_momentum_is_plain_sgd_with_momentum():
    parameters = np.zeros(2, np.float32)
    optimizer = Momentum(parameters, rate=0.5, momentum=0.5)
    for _ in range(2):
        optimizer.step(np.array([1, 2], np.float32))
    assert parameters.tolist() == [-1.25, -2.5]


def test_stragglers_follow_the_config_and_repeat():
    straggler = (
        Straggler(workers=(0, 1), mean_ms=10.0),
        Straggler(workers=(1,), mean_ms=100.0, from_iteration=50),
    )
    config = Config(straggler=straggler)
    steady, changing = Blocking(config, 0), Blocking(config, 1)
    assert (steady.mean_s(1), steady.mean_s(99)) == (0.01, 0.01)
    assert (changing.mean_s(49), changing.mean_s(50)) == (0.01, 0.1)
    drawn = [changing.blocking_s(iteration) for iteration in range(50, 2050)]
    assert np.mean(drawn) == pytest.approx(0.1, rel=0.05)
    assert np.var(drawn) / np.mean(drawn) == pytest.approx(config.run.event_ms / 1000, rel=0.1)
    assert drawn[:5] == [Blocking(config, 1).blocking_s(iteration) for iteration in range(50, 55)]
    assert Blocking(Config(), 0).blocking_s(1) == 0


def test_roles_go_to_the_next_rank_and_around() -> None:
    straggler = (Straggler(workers=(0, 1), mean_ms=4.0), Straggler(workers=(2,), mean_ms=80.0))
    config = Config(run=Run(shift_every=50), job=Job(workers=3), straggler=straggler)
    workers = [Blocking(config, rank) for rank in range(3)]
    slow = [[rank for rank in range(3) if workers[rank].mean_s(at) == 0.08] for at in (1, 50, 51, 100, 101, 150, 151)]
    assert slow == [[2], [2], [0], [0], [1], [1], [2]]
    assert all(sorted(worker.mean_s(at) for worker in workers) == [0.004, 0.004, 0.08] for at in (1, 51, 999))
