"""Calls are refused before anything happens; communicators meet and close."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import pytest

from kofn_host.collectives import Communicator, Gloo, Mpi, Ring, Work
from kofn_host.errors import CollectiveError
from tests.loopback import loopback
from tests.system.collectives import scenarios
from tests.system.collectives.crews import threads

_ports = count(19_800)

ONES = np.ones((1, 3), np.float32)
READ_ONLY = np.ones((1, 3), np.float32)
READ_ONLY.flags.writeable = False


@pytest.fixture(scope="module")
def alone() -> Iterator[Ring]:
    with Ring(0, there(1)) as communicator:
        yield communicator


def there(workers: int) -> list[str]:
    port = next(_ports)
    return [f"{loopback(89, rank + 1)}:{port}" for rank in range(workers)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda c: c.all_reduce([1.0]),
            "array must be a NumPy array of float32, float16, bfloat16, int32, int64, got a list",
        ),
        (
            lambda c: c.all_reduce(np.ones(3)),
            "array must be of float32, float16, bfloat16, int32, int64 in native byte order, got float64",
        ),
        (lambda c: c.all_gather(np.ones(3, ">f4")), "in native byte order, got >f4"),
        (lambda c: c.broadcast(np.array([object()])), "in native byte order, got object"),
        (lambda c: c.all_reduce(ONES, op="max"), "op must be 'sum' or 'mean', got 'max'"),
        (
            lambda c: c.all_reduce(np.ones(3, np.int32), op="mean"),
            "op must be 'sum' for arrays of int32, got 'mean'",
        ),
        (lambda c: c.all_reduce(ONES, elastic=True), "elastic must be False, got True: a Ring needs all workers"),
        (
            lambda c: c.all_reduce(ONES, out=np.ones(3, np.float32)),
            "out must be an array of float32 (1, 3), got float32 (3,)",
        ),
        (
            lambda c: c.all_reduce(ONES, out=np.ones((1, 3))),
            "out must be an array of float32 (1, 3), got float64 (1, 3)",
        ),
        (lambda c: c.all_reduce(ONES, out=[[1, 1, 1]]), "out must be an array of float32 (1, 3), got a list"),
        (
            lambda c: c.all_reduce(ONES, out=np.ones((1, 6), np.float32)[:, ::2]),
            "out must be a writeable C-contiguous array, got not C-contiguous",
        ),
        (lambda c: c.all_reduce(ONES, out=READ_ONLY), "out must be a writeable C-contiguous array, got read-only"),
        (lambda c: c.all_gather(ONES, out=ONES), "out must be an array of float32 (1, 1, 3), got float32 (1, 3)"),
        (lambda c: c.reduce_scatter(ONES, out=ONES), "out must be an array of float32 (3,), got float32 (1, 3)"),
        (
            lambda c: c.reduce_scatter(np.ones((2, 3), np.float32)),
            "array must have shape (1, ...), a row for each worker, got (2, 3)",
        ),
        (lambda c: c.reduce_scatter(np.float32(1)), "array must have shape (1, ...), a row for each worker, got ()"),
        (lambda c: c.broadcast(ONES, root=1), "root must be 0 to 0 with 1 workers, got 1"),
        (lambda c: c.broadcast(ONES, root=-1), "root must be 0 to 0 with 1 workers, got -1"),
        (lambda c: c.barrier(name="x" * 201), "name must be a string of up to 200 characters"),
        (lambda c: c.barrier(name=7), "name must be a string of up to 200 characters, got 7"),
        (lambda c: c.broadcast(ONES, root="0"), "root must be 0 to 0 with 1 workers, got '0'"),
        (lambda c: c.begin(0), "elements must be a whole number from 1 on, got 0"),
        (lambda c: c.begin(True), "elements must be a whole number from 1 on, got True"),
        (lambda c: c.broadcast(ONES, root=False), "root must be 0 to 0 with 1 workers, got False"),
        (lambda c: c.begin("4"), "elements must be a whole number from 1 on, got '4'"),
        (lambda c: c.begin(4, name=7), "name must be a string of up to 200 characters, got 7"),
        (lambda c: c.begin(4, elastic=True), "elastic must be False, got True: a Ring needs all workers"),
    ],
)
def test_invalid_calls_are_refused_at_once(alone: Ring, call: Callable[[Any], object], error: str) -> None:
    with pytest.raises(CollectiveError) as found:
        call(alone)
    assert error in str(found.value)
    scenarios.one_call(alone)


@pytest.mark.parametrize(
    ("rank", "workers", "error"),
    [
        (0, 0, "workers must be 1 or more, got 0"),
        (2, 2, "rank must be 0 to 1 with 2 workers, got 2"),
        (-1, 2, "rank must be 0 to 1 with 2 workers, got -1"),
        ("1", 2, "rank must be 0 to 1 with 2 workers, got '1'"),
    ],
)
def test_invalid_ranks_and_worker_counts_are_refused(rank: int, workers: int, error: str) -> None:
    before = threading.active_count()
    with pytest.raises(CollectiveError, match=error):
        Ring(rank, there(workers))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("addresses", "given", "error"),
    [
        ("127.0.0.1", {}, "addresses must be HOST or HOST:PORT of each worker, by rank, got '127.0.0.1'"),
        (None, {}, "addresses must be HOST or HOST:PORT of each worker, by rank, got None"),
        ([1, 2], {}, "addresses must be HOST or HOST:PORT of each worker, by rank, got [1, 2]"),
        (["127.0.0.1:65536"], {}, "must be HOST or HOST:PORT, with a port from 1 to 65535, got '127.0.0.1:65536'"),
        (["127.0.0.1"], {"timeout_s": 0}, "timeout_s must be a number of seconds above 0, got 0"),
        (["127.0.0.1"], {"timeout_s": float("nan")}, "timeout_s must be a number of seconds above 0, got nan"),
        (["127.0.0.1"], {"meet_s": "3"}, "meet_s must be a number of seconds above 0, got '3'"),
    ],
)
def test_invalid_addresses_are_refused(addresses: Any, given: dict[str, Any], error: str) -> None:
    before = threading.active_count()
    with pytest.raises(CollectiveError) as found:
        Ring(0, addresses, **given)
    assert error in str(found.value)
    assert threading.active_count() == before


def test_closed_communicator_refuses_calls_and_fails_open_ones() -> None:
    with threads("ring", 2) as team:
        one, other = team.communicators
        work = one.barrier()
        one.close()
        one.close()
        with pytest.raises(CollectiveError, match="worker 0 has closed its communicator"):
            work.result(5)
        with pytest.raises(CollectiveError, match="the communicator of worker 0 is closed"):
            one.barrier()
        with pytest.raises(CollectiveError, match="worker 0 has closed its communicator"):
            other.barrier().result(5)


def test_close_ends_all_threads() -> None:
    before = threading.active_count()
    with threads("ring", 3) as team:
        team.run(scenarios.one_call)
        assert threading.active_count() > before
    assert threading.active_count() == before


@pytest.mark.parametrize("closer", [0, 1, 2])
def test_worker_that_is_done_may_close_before_the_others_finish(closer: int) -> None:
    """The last call's bytes are still on their way to slow workers."""

    def work(communicator: Communicator) -> None:
        array = np.full(700_000, communicator.rank, np.float32)
        work = communicator.all_reduce(array)
        if communicator.rank == closer:
            work.result(20)
            communicator.close()
        scenarios.same(work.result(20), np.full(700_000, 3, np.float32))

    for _ in range(5):
        with threads("ring", 3) as team:
            team.run(work)


@pytest.mark.slow
def test_missing_worker_is_named() -> None:
    addresses = there(3)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(Ring, 2, addresses, meet_s=5)
        with pytest.raises(CollectiveError, match=r"worker 1 did not come to worker 0 at 127\.\S+ in 0\.5 s"):
            Ring(0, addresses, meet_s=0.5)
        with pytest.raises(CollectiveError, match=r"worker 1 did not come"):
            other.result()
    with pytest.raises(CollectiveError, match=rf"worker 0 cannot be reached at {addresses[0]}: "):
        Ring(1, addresses, meet_s=0.1)


@pytest.mark.parametrize(
    ("rank", "workers", "job", "words"),
    [
        (1, 2, 2, r"must be one of workers \[1\] of 2 of a Ring of job 1, got worker 1 of 2 of a Ring of job 2"),
        (1, 3, 1, r"of workers \[1\] of 2 of a Ring of job 1, got worker 1 of 3"),
        (2, 3, 1, r"of workers \[1\] of 2 of a Ring of job 1, got worker 2 of 3"),
    ],
)
def test_workers_of_another_configuration_are_refused(rank: int, workers: int, job: int, words: str) -> None:
    """Both sides get the reason."""
    addresses = there(3)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(Ring, rank, addresses[:workers], job=job, meet_s=5)
        with pytest.raises(CollectiveError, match=words):
            Ring(0, addresses[:2], meet_s=5)
        with pytest.raises(CollectiveError, match=words):
            other.result()


def test_connection_that_is_no_worker_is_refused() -> None:
    addresses = there(2)
    host, _, port = addresses[0].partition(":")

    def knock() -> None:
        with socket.create_connection((host, int(port)), 5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"nothing" in stranger.recv(1000)

    with ThreadPoolExecutor(2) as pool:
        made = pool.submit(Ring, 0, addresses, meet_s=5)
        while True:
            try:
                knock()
            except ConnectionRefusedError:
                continue
            break
        with pytest.raises(CollectiveError, match="a connected peer has sent nothing valid"):
            made.result()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.0.2.1", r"cannot listen at 192\.0\.2\.1:0: .*Cannot assign requested address"),
        (f"{loopback(89, 1)}:http", "an address must be HOST or HOST:PORT, with a port from 1 to 65535, got "),
    ],
    ids=["elsewhere", "no number"],
)
def test_unusable_addresses_are_refused(address: str, words: str) -> None:
    with pytest.raises(CollectiveError, match=words):
        Ring(0, [address])


def test_callback_may_close_the_communicator(alone: Ring) -> None:
    with Ring(0, there(1)) as communicator:
        work = communicator.barrier()
        closed = threading.Event()

        def close(done: object) -> None:
            communicator.close()
            closed.set()

        work.add_done_callback(close)
        assert closed.wait(10)


def test_wait_for_a_piece_fails_when_the_communicator_closes(alone: Ring) -> None:
    gradient = alone.begin(10)
    gradient.put(0, np.ones(5, np.float32))
    closing = threading.Timer(0.1, alone.close)
    closing.start()
    with pytest.raises(CollectiveError, match="worker 0 has closed its communicator"):
        gradient.wait(0, 10)
    closing.join()
    np.testing.assert_array_equal(gradient.wait(0, 5), np.ones(5, np.float32))
    with pytest.raises(CollectiveError, match="the communicator of worker 0 is closed"):
        alone.begin(10)


@pytest.mark.slow
def test_thousands_of_calls_are_in_flight() -> None:
    with threads("ring", 2) as team:
        team.run(thousands)


def thousands(communicator: Communicator) -> None:
    works = [communicator.all_reduce(np.int64(at), name=str(at % 7)) for at in range(3000)]
    assert [int(work.result(60)) for work in works] == [2 * at for at in range(3000)]


@pytest.mark.slow
def test_callbacks_make_calls_while_thousands_are_in_flight() -> None:
    """More messages are sent than the sockets have room for, in both directions."""
    with threads("ring", 2) as team:
        team.run(chained)


def chained(communicator: Communicator) -> None:
    """The first callback waits until all calls are made, unless the calling thread runs it because the call is already
    done.
    """
    made, second, caller = threading.Event(), list[Work[None]](), threading.current_thread()
    first = [communicator.barrier(name="first")]
    first[0].add_done_callback(lambda done: threading.current_thread() is caller or made.wait(30))
    first += [communicator.barrier(name="first") for _ in range(3000)]
    made.set()
    for work in first[1:]:
        work.add_done_callback(lambda done: second.append(communicator.barrier(name="second")))
    for work in first:
        work.result(60)
    communicator.barrier().result(60)
    assert len(second) == 3000
    assert all(work.result(60) is None for work in second)


@pytest.mark.slow
def test_two_communicators_run_side_by_side() -> None:
    with threads("ring", 3) as one, threads("ring", 3) as other, ThreadPoolExecutor(2) as pool:
        for team in pool.map(lambda team: [team.run(scenarios.many_are_under_way)], (one, other)):
            assert team


def test_gloo_names_the_missing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CollectiveError, match="gloo is PyTorch's, which is not installed"):
        Gloo(0, there(1))


def test_mpi_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "")
    words = "there is no ompi-server: apt install openmpi-bin libopenmpi-dev"
    assert words in Mpi.missing()
    with pytest.raises(CollectiveError, match=words):
        Mpi(0, there(1))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "has no module mpi4py: pip install mpi4py" in Mpi.missing()


def test_mpi_allows_one_communicator_a_process() -> None:
    if missing := Mpi.missing():
        pytest.skip(missing)
    code = f"""
from kofn_host.collectives.kinds.mpi import Mpi
from kofn_host.errors import CollectiveError
with Mpi(0, {there(1)!r}) as one:
    one.barrier().result(5)
try:
    Mpi(0, {there(1)!r})
except CollectiveError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "a process must have one Mpi at most: MPI is in use in this one already\n"
