"""A stall is explained by the waiting and the missing workers and recent events, once, and again when the reason
changes.
"""

from kofn.run.stall import Scene, StalledWorker, Watch, explain


def members(*states: tuple[int, str]) -> list[StalledWorker]:
    return [
        StalledWorker(rank=rank, iteration=iteration, state=state) for rank, (iteration, state) in enumerate(states)
    ]


def test_killed_worker_is_named_with_its_event() -> None:
    scene = Scene(
        members=members((41, "training"), (41, "training"), (40, "killed")),
        waiting="k = 3 of 2 live workers",
        recent=["worker-2 killed at iteration 40"],
    )
    assert explain(scene) == (
        "workers 0, 1 at iteration 41 may wait for worker 2 (killed, at iteration 40); "
        "the controller says: k = 3 of 2 live workers; just before: worker-2 killed at iteration 40"
    )


def test_worker_that_is_behind_or_silent_is_named() -> None:
    slow = StalledWorker(rank=1, iteration=7, state="training", silent_s=3.6)
    text = explain(Scene(members=[StalledWorker(rank=0, iteration=7, state="training"), slow]))
    assert text == "worker 0 at iteration 7 may wait for worker 1 (at iteration 7, silent for 4 s)"


def test_absent_controller_is_named_and_its_old_reason_is_not_repeated() -> None:
    scene = Scene(members=members((9, "training"), (9, "training")), waiting="old", controller_away=True)
    text = explain(scene)
    assert text.startswith("all workers have finished iteration 9 and wait for sums of 10; the controller is away")
    assert "old" not in text


def test_lost_switch_is_named() -> None:
    scene = Scene(members=members((9, "training")), switch_connected=False)
    assert explain(scene).endswith("the controller says: it has no connection to the switch")


def test_starting_job_shows_its_workers_states_and_blames_none() -> None:
    scene = Scene(
        members=members((0, "starting"), (0, "attached"), (0, "starting")),
        start="importing PyTorch",
        waiting="starting: 1 of 3 attached, waiting for workers 0, 2 since 6 s",
    )
    assert explain(scene) == "starting: importing PyTorch (not attached yet: workers 0, 2)"


def test_starting_job_without_its_controller_shows_both() -> None:
    scene = Scene(members=members((0, "starting"), (0, "starting")), controller_away=True)
    text = explain(scene)
    assert text.startswith("starting: loading the model (not attached yet: workers 0, 1); the controller is away")


def test_start_does_not_hide_a_killed_or_trained_worker() -> None:
    killed = explain(Scene(members=members((0, "starting"), (0, "killed"))))
    assert killed == "no worker can go on: worker 0 (starting), worker 1 (killed)"
    trained = explain(Scene(members=members((0, "starting"), (3, "training"))))
    assert trained == "worker 1 at iteration 3 may wait for worker 0 (starting)"


def test_reason_is_printed_once_then_when_it_changes_then_occasionally() -> None:
    watch = Watch()
    assert watch.lines(1.9, 2.0, "a") == []
    assert watch.lines(2.0, 2.0, "a") == ["no iteration for 2 s: a"]
    assert watch.lines(3.0, 2.0, "a") == []
    assert watch.stall == "no iteration for 3 s: a"
    assert watch.lines(4.0, 2.0, "b") == ["no iteration for 4 s: b"]
    assert watch.lines(14.0, 2.0, "b") == ["no iteration for 14 s: b"]
    assert watch.lines(0.1, 2.0, "b") == ["goes on after 14.0 s"]
    assert watch.stall == ""
    assert watch.lines(0.1, 2.0, "b") == []


def test_passing_time_is_no_new_reason() -> None:
    watch = Watch()
    assert len(watch.lines(2.0, 2.0, "waiting for worker 2 since 1 s, silent for 2.5 s")) == 1
    assert watch.lines(3.0, 2.0, "waiting for worker 2 since 2 s, silent for 3.5 s") == []
    assert len(watch.lines(3.1, 2.0, "waiting for worker 3 since 2 s, silent for 3.5 s")) == 1


def test_ended_worker_waits_for_no_other() -> None:
    ended = [StalledWorker(rank=rank, iteration=9, state="target", done=True) for rank in (0, 2)]
    back = StalledWorker(rank=1, iteration=4, state="joining")
    text = explain(Scene(members=[ended[0], back, ended[1]]))
    assert text == "workers 0, 2 ended at iteration 9, worker 1 (joining, at iteration 4) did not"
