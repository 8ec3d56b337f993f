"""Each job.collective: supported configurations, places of its processes, and reports of its trials."""

import json
import os
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from kofn.report.page import write_report
from kofn.report.summarise import summarise
from kofn.report.summary import RunSummary, Summary
from kofn.run.commands import Commands
from kofn.run.job_trial import JobTrial
from kofn.run.jobs import plan_jobs
from kofn.run.network import EmulatedHost, NetworkClient
from kofn.run.preconditions import check_needs
from kofn.run.processes import Processes
from kofn.run.topology import wanted_topology
from kofn.sim.runner import check as check_simulated
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.network import NetworkSection as Settings
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.results.link_bytes import interface_bytes
from kofn_common.results.worker_metrics import TIME_PARTS
from kofn_host.collectives.parameter_server import main as server_command
from kofn_host.training.loop import Training
from tests.run.fake_run import FakeTrial, simulate, write_job
from tests.run.real_run import RealRun
from tests.system.collectives.protocols import EXAMPLES

KILL = "[[event]]\nat_iteration = 3\nkill = '{}'\n[[event]]\nat_iteration = 5\nstart = '{}'"


def plan(tmp_path: Path, collective: str, rest: str = "", objectives: tuple[str, ...] = ()) -> Config:
    path = tmp_path / "a.toml"
    path.write_text(f"{rest}\n[job]\ncollective = '{collective}'\n" if "[job]" not in rest else rest)
    (job,) = plan_jobs([path], target=None, driver=None, objectives=objectives)
    return job.config


@pytest.mark.parametrize("collective", ["ring", "gloo", "mpi"])
@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (
            "[run]\ntrials = ['all', 'fixed:2']",
            r"run.trials must be \[\"all\"\] .--trial all., got \['all', 'fixed:2'\]",
        ),
        ("[run]\nrecord = true", "run.record must be false, got true"),
        ("[compress]\ncodec = 'int8'", "compress.codec must be 'int32' and compress.ratio 1, got 'int8' and 1"),
        ("[compress]\ncodec = 'int32'\nratio = 0.5", "compress.ratio 1, got 'int32' and 0.5"),
        ("[policy]\nlate_gradient = 'drop'", "policy.late_gradient must be 'auto', the default, got 'drop'"),
        ("[[fault]]\ndrop = 0.1", r"\[\[fault\]\] must not be given"),
        (KILL.format("worker-1", "worker-1"), "event.start must be controller, got 'worker-1'"),
        (KILL.format("switch", "switch"), "event.kill must be controller, worker-0, .*, got 'switch'"),
        ("[[event]]\nat_iteration = 3\nobjective = 'fixed:2'", "event.objective must not be given, got 'fixed:2'"),
        ("[[event]]\nat_iteration = 3\nstart = 'worker-1'", "event.start is 'worker-1'|job.start_workers"),
    ],
)
def test_unsupported_options_of_peer_collectives_are_refused(
    tmp_path: Path, collective: str, rest: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(tmp_path, collective, rest)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("[run]\ntrials = ['all', 'throughput']", "run.trials must have 'all' and 'fixed:K' alone, got 'throughput'"),
        ("[[fault]]\nwhere = 'switch'\ndrop = 0.1", "fault.where must be 'host', got 'switch'"),
        (KILL.format("switch", "switch"), "event.kill must be controller, worker-0, .*, got 'switch'"),
        ("[[event]]\nat_iteration = 3\nobjective = 'all'", "event.objective must not be given, got 'all'"),
    ],
)
def test_unsupported_options_of_a_server_are_refused(tmp_path: Path, rest: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"job.collective is 'server', {words}"):
        plan(tmp_path, "server", rest)


@pytest.mark.parametrize("key", ["racks = 2", "exact_slots = 256"])
def test_data_plane_without_entries_for_trees_and_exact_calls_is_refused(tmp_path: Path, key: str) -> None:
    job = f"[job]\ncollective = 'switchml:Switchml'\nmodules = '{EXAMPLES}'\n{key}\n"
    with pytest.raises(
        ConfigError, match=rf"job.{key.split(maxsplit=1)[0]} must be \d with the data plane of 'switchml:Sw.*, got"
    ):
        plan(tmp_path, "switchml:Switchml", f"{job}[run]\ntrials = ['all']")


def test_supported_options_are_accepted(tmp_path: Path) -> None:
    """Without configured trials there is one, since k is not chosen."""
    story = "[[link]]\nworkers = [1]\nmbps = 10\nat_iteration = 9\n[[straggler]]\nworkers = [1]\nmean_ms = 9\n"
    for collective in ("ring", "gloo", "mpi", "server"):
        config = plan(tmp_path, collective, story + KILL.format("controller", "controller"))
        assert config.run.trials == ("all",)
    more = "[compress]\ncodec = 'int8'\n[policy]\nlate_gradient = 'drop'\n[[fault]]\ndrop = 0.1\n"
    late = KILL.format("worker-1", "worker-1")
    server = plan(tmp_path, "server", more + late, objectives=("fixed:1", "all"))
    assert server.run.trials == ("fixed:1", "all")
    with pytest.raises(ConfigError, match=r"job.start_workers must be 4 \(job.workers\), got 3"):
        plan(tmp_path, "ring", "[job]\ncollective = 'ring'\nstart_workers = 3")


def test_workers_share_a_servers_link() -> None:
    assert load_collective("server").server and not load_collective("switch").server
    assert (Config().pace_mbps(sharing=5), Config().pace_mbps()) == (40, 200)
    assert Config(network=Settings(link_mbps=None)).pace_mbps(sharing=5) == 0


@pytest.mark.slow
def test_every_server_needs_a_host_and_a_port(tmp_path: Path) -> None:
    star = json.loads(wanted_topology(Config(), tmp_path / "a.toml", hosts=4, servers=1))
    assert list(star["hosts"]) == ["h1", "h2", "h3", "h4", "h5"]
    assert {link[3] for link in star["links"]} == {200.0}
    (tmp_path / "own.json").write_text(json.dumps(star))
    own = Config(network=Settings(topology=Path("own.json")))
    assert json.loads(wanted_topology(own, tmp_path / "a.toml", hosts=4, servers=1)) == star
    with pytest.raises(
        ConfigError, match=r"must have 6 hosts \(job.workers is 4\), .* and 2 more for parameter servers, got 5"
    ):
        wanted_topology(own, tmp_path / "a.toml", hosts=4, servers=2)
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("[job]\nworkers = 60\ncollective = 'server'")
    other.write_text("[job]\nid = 2\nworkers = 4\n[run]\ntrials = ['all']")
    with pytest.raises(ConfigError, match=r"at most 63 together, got 60 [+] 4 = 64: .* so is every parameter server"):
        plan_jobs([one, other], target=None, driver=None, objectives=())


def test_missing_requirements_are_named_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'gloo': it is PyTorch's, and .* has no module torch: pip install torch"):
        check_needs(plan(tmp_path, "gloo"))
    with pytest.raises(ConfigError, match=r"'mpi': it is mpi4py's, and .* has no module mpi4py: pip install mpi4py"):
        check_needs(plan(tmp_path, "mpi"))
    check_needs(plan(tmp_path, "ring"))
    replaying = plan(tmp_path, "ring", "[model]\nreplay = 'mine'")
    assert replaying.model.replay == str(tmp_path / "mine"), (
        "all processes must find the folder, wherever their TOML file is"
    )
    with pytest.raises(ConfigError, match=r"model.replay: .*mine must be a folder with one or more .npy files"):
        check_needs(replaying)
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine" / "a.npy", np.ones(3, np.float32))
    check_needs(replaying)


def test_collectives_that_are_not_simulated_are_refused(tmp_path: Path) -> None:
    words = r"job.collective must be 'switch', 'server' or 'ring' in a simulation, got 'gloo'"
    with pytest.raises(ConfigError, match=words):
        check_simulated(plan(tmp_path, "gloo"))
    for collective in ("switch", "server", "ring"):
        check_simulated(plan(tmp_path, collective, objectives=("all",)))


# -- processes


def host(number: int) -> tuple[str, EmulatedHost]:
    name = f"h{number}"
    return name, EmulatedHost(
        ip=f"10.0.0.{number}", mac="", management="172.30.255.9", port=number, interface=f"s1-eth{number}"
    )


def training(tmp_path: Path, config: Config, objective: str) -> tuple[RunFolder, JobTrial]:
    folder = RunFolder.create(tmp_path / "run", [objective])
    server = host(9) if config.job.collective == "server" else None
    made = JobTrial(
        config,
        folder.jobs[0].trials[0],
        Processes(cast(NetworkClient, None)),
        cast(NetworkClient, None),
        hosts=[host(1), host(2), host(3)],
        prefix="job-1-",
        title="",
        server=server,
    )
    return folder, made


@pytest.mark.parametrize(("objective", "k"), [("all", "3"), ("fixed:2", "2")])
def test_server_and_workers_are_told_each_others_addresses(tmp_path: Path, objective: str, k: str) -> None:
    config = Config(job=JobSection(id=4, workers=3, slots=64, window=8, collective="server"))
    _, made = training(tmp_path, config, objective)
    program = made.programs.server(Commands(network=Settings(), topology=tmp_path, certificates=None))
    assert program is not None
    assert (program.name, program.node, program.endless) == ("job-1-server", "h9", True)
    given = server_command.make_context("server", list(program.argv[3:])).params
    assert given["workers"] == ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert (given["address"], given["k"], given["job"], given["slots"]) == ("10.0.0.9", int(k), 4, 64)
    assert made.programs._summed() == ["--service", "10.0.0.9"]


def test_workers_of_a_ring_are_told_each_others_addresses(tmp_path: Path) -> None:
    _, made = training(tmp_path, Config(job=JobSection(workers=3, collective="ring")), "all")
    assert made.programs.server(Commands(network=Settings(), topology=tmp_path, certificates=None)) is None
    assert made.programs._summed() == ["--worker", "10.0.0.1", "--worker", "10.0.0.2", "--worker", "10.0.0.3"]


def test_link_bytes_are_counted_between_two_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the job's links count: those of its workers and of its server."""
    head = "Inter-|   Receive |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes ...\n"
    (tmp_path / "dev").write_text(
        head + "    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\ns1-eth1:700 3 0 0 0 0 0 0 90 1 0 0 0 0 0 0\n"
    )
    monkeypatch.setattr("kofn_common.results.link_bytes.NET_DEV", tmp_path / "dev")
    assert interface_bytes() == {"lo": (5, 5), "s1-eth1": (700, 90)}
    folder, made = training(tmp_path, Config(job=JobSection(workers=3, collective="server")), "all")
    before = {f"h{number}": (10 * number, number) for number in range(1, 11)}
    after = {name: (sent + 7, received + 3) for name, (sent, received) in before.items()}
    made.count_links(before, after)
    assert json.loads(folder.jobs[0].trials[0].links.read_text()) == {f"h{number}": [7, 3] for number in (1, 2, 3, 9)}


# -- reports of a trial


def spent(fake: FakeTrial) -> FakeTrial:
    """Add the times that workers would report; the first iteration's are nonsense."""
    for line in (line for worker in fake.lines for line in worker):
        first = line["iteration"] == 1
        parts = dict.fromkeys(TIME_PARTS, 9.0 if first else 0.01)
        line.update(parts | {"compute_s": 9.0 if first else 0.05, "wait_s": 0.08})
    return fake


def told(path: Path, config: Config, fake: FakeTrial, *, ledger: bool = True) -> Summary:
    folder = RunFolder.create(path, ["all"])
    folder.write_record([config], driver="netns")
    folder.write_effective([config])
    write_job(folder.jobs[0], [fake])
    (entry,) = folder.jobs[0].trials
    entry.links.write_text('{"h1": [1500000, 500000], "h2": [1000000, 2000000]}')
    for rank in range(0 if ledger else fake.workers):
        entry.sums(rank).unlink()
    summary = summarise(folder.jobs[0], config)
    report = write_report(folder, [config], RunSummary(jobs=(summary,))).read_text()
    assert "compute/code/net/wait/step" in report
    return summary


def row(summary: Summary, label: str) -> str:
    return next(cells[1] for cells in summary.rows() if cells[0] == label)


@pytest.mark.slow
def test_summary_shows_where_time_and_bytes_went(tmp_path: Path) -> None:
    summary = told(tmp_path, Config(), spent(simulate()))
    (entry,) = summary.trials
    assert entry.times_s == pytest.approx(
        {"compute": 0.05, "wait": 0.08} | dict.fromkeys(("encode", "send", "receive", "sum", "decode", "step"), 0.01)
    )
    assert row(summary, "compute/code/net/wait/step") == "26/16/11/42/5 %"
    assert entry.link_bytes == {"h1": (1500000, 500000), "h2": (1000000, 2000000)}
    assert row(summary, "links, to/from the switch") == "2.5/2.5 MB"
    assert row(summary, "gradients conserved") == "exactly"


@pytest.mark.slow
def test_conservation_does_not_apply_without_a_ledger(tmp_path: Path) -> None:
    """Neither do packets and retransmissions, which only TCP knows."""
    ring = Config(job=JobSection(collective="ring"))
    summary = told(tmp_path / "ring", ring, spent(simulate()), ledger=False)
    assert summary.failures == []
    assert summary.trials[0].collective == "ring"
    assert row(summary, "gradients conserved") == "not applicable"
    assert (row(summary, "retransmissions"), row(summary, "sent")) == ("-", "0.0 MB")
    differing = spent(simulate())
    differing.lines[2][41]["params"] = "dead"
    assert "replicas differ" in told(tmp_path / "differing", ring, differing, ledger=False).failures[0]
    with_books = told(tmp_path / "switch", Config(), spent(simulate()), ledger=False)
    assert "conservation cannot be checked" in with_books.failures[0]


@pytest.mark.slow
def test_replay_has_no_target_to_miss(tmp_path: Path) -> None:
    fake = spent(simulate())
    for line in (line for worker in fake.lines for line in worker):
        line.update(accuracy=None, loss=None)
    config = plan(tmp_path, "switch", "[model]\nreplay = 'mine'\n[run]\ntrials = ['all']")
    summary = told(tmp_path / "run", config, fake)
    assert summary.failures == []
    assert summary.to_dict()["metric"] is None
    assert not any("accuracy" in cells[0] or "target" in cells[0] for cells in summary.rows())
    missed = told(tmp_path / "trained", Config(), fake)
    assert "accuracy 95.0% was not reached" in missed.failures[0]
    Console(width=40, file=None, quiet=True).print(summary.table())


# -- real runs

ONE = """
[run]
target = 0.85
trials = ["all"]
[network]
link_mbps = 100.0
[job]
id = {id}
workers = 2
collective = "{collective}"
[model]
compute_ms = 8
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_switch_server_and_ring_train_side_by_side(tmp_path: Path) -> None:
    """Switch and server give the same bits. Each one's times add up to the clock's."""
    others = [ONE.format(id=number, collective=name) for number, name in ((2, "server"), (3, "ring"))]
    with RealRun(tmp_path, "--json", config=ONE.format(id=1, collective="switch"), others=others) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    jobs = [entry["trials"][0] for entry in json.loads(run.stdout.read_text())["jobs"]]
    switch, server, ring = ([lines(run.out, job, rank) for rank in (0, 1)] for job in (1, 2, 3))
    digests = [[[line["params"] for line in worker] for worker in job] for job in (switch, server, ring)]
    assert all(one == other for one, other in digests), "replicas must be bit-identical"
    assert digests[0] == digests[1]
    assert len(digests[0][0]) > 5
    assert digests[2] != digests[0], "float32 sums must differ from fixed-point sums"
    for worker in (*switch, *server, *ring):
        check_times(worker)
    assert [set(job["link_bytes"]) for job in jobs] == [{"h1", "h2"}, {"h3", "h4", "h7"}, {"h5", "h6"}]
    at_server, *at_workers = (jobs[1]["link_bytes"][name] for name in ("h7", "h3", "h4"))
    assert at_server[0] == pytest.approx(sum(received for _, received in at_workers), rel=0.05)
    assert at_server[1] == pytest.approx(sum(sent for sent, _ in at_workers), rel=0.05)
    assert "2 of 2 workers complete a block" in (run.out / "all" / "job-2" / "logs" / "server.log").read_text()
    gradient = 4 * Training(Config(), 0).parameters * len(digests[2][0])
    assert jobs[2]["bytes_sent"] == pytest.approx(2 * gradient, rel=0.2), (
        "both workers send 2 (n - 1) / n of the gradient"
    )
    assert not list((run.out / "all" / "job-3").glob("*.npz"))


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
@pytest.mark.parametrize("collective", ["gloo", "mpi"])
def test_gloo_and_mpi_train_in_the_emulated_network(tmp_path: Path, collective: str) -> None:
    """The workers are started one by one, each in its own host; their bytes pass the links."""
    if missing := load_collective(collective).missing():
        pytest.skip(missing)
    with RealRun(tmp_path, "--json", config=ONE.format(id=1, collective=collective)) as run:
        assert run.wait() == 0, run.text()
        assert run.leftovers() == []
    (trial,) = json.loads(run.stdout.read_text())["trials"]
    assert trial["identity_error"] is None
    link_bytes = sum(sent for sent, _ in trial["link_bytes"].values())
    assert trial["bytes_sent"] <= link_bytes < 1.3 * trial["bytes_sent"]


def lines(out: Path, job: int, rank: int) -> list[dict[str, float]]:
    written = (out / "all" / f"job-{job}" / f"worker-{rank}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, written) if "iteration" in line]


def check_times(worker: list[dict[str, float]]) -> None:
    """Check that all parts together equal the time between the starts of iterations.

    The median excludes iterations in which the worker was descheduled between two readings of the clock. The part that
    is not measured, writing the iteration's line and its report, takes longer on a busy machine.
    """
    shares = [
        sum(one[part] for part in TIME_PARTS) / (other["started"] - one["started"]) for one, other in pairwise(worker)
    ]
    assert median(shares) == pytest.approx(1, rel=0.1)
    assert all(one["started"] < other["started"] for one, other in pairwise(worker))
    assert all(line["compute_s"] >= 0.007 for line in worker)
