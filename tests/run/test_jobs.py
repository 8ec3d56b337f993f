"""Several jobs: shared settings, jobs that do not fit together, and the place of each one's results."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from kofn.report.page import write_report
from kofn.report.summarise import summarise
from kofn.report.summary import RunSummary
from kofn.run.commands import Commands
from kofn.run.jobs import plan_jobs, slots_end
from kofn.run.port_faults import port_rules
from kofn.run.runner import command
from kofn_common.config.errors import ConfigError
from kofn_common.config.faults import FaultSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import merge
from tests.run.fake_run import simulate, write_job


def files(tmp_path: Path, *texts: str) -> list[Path]:
    paths = [tmp_path / f"{name}.toml" for name in "abc"[: len(texts)]]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def plan(tmp_path: Path, *texts: str, target: str | None = None, objectives: tuple[str, ...] = ()) -> list[Config]:
    jobs = plan_jobs(files(tmp_path, *texts), target=target, driver=None, objectives=objectives)
    return [job.config for job in jobs]


def test_run_and_network_are_the_first_jobs(tmp_path: Path) -> None:
    one, other = plan(
        tmp_path,
        "[run]\nseed = 7\ntrials = ['all']\n[network]\ncontroller_port = 50099\n[model]\nbatch = 8",
        "[run]\nseed = 9\n[job]\nid = 2\nworkers = 3\n[policy]\nmargin = 0.5",
        target="bmv2",
    )
    assert other.run == one.run
    assert other.run.seed == 7
    assert other.network == one.network
    assert other.network.target == "bmv2"
    assert (other.job.workers, other.policy.margin) == (3, 0.5)
    assert (one.model.batch, other.model.batch) == (8, 32)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("", ""), r"b.toml: job.id must differ from every other job's, got 1, as in .*a.toml"),
        (("[job]\nslots = 4096", "[job]\nid = 2\nslots = 128"), r"got 4096 \+ 128 = 4224, which end at 4224"),
        (("[job]\nslots = 2\nwindow = 1", "[job]\nid = 2\nslots = 4096"), r"2 \+ 4096 = 4098, which end at 8192"),
        (("[job]\nworkers = 40", "[job]\nid = 2\nworkers = 25"), r"must be at most 64 together, got 40 \+ 25 = 65"),
        (
            ("[run]\ntrials = ['fixed:4']", "[job]\nid = 2\nworkers = 2"),
            r"b.toml: run.trials must be .*, got 'fixed:4'",
        ),
        (("", "[job]\nid = 2\nwindow = 1000"), r"b.toml: job.window must be .*, got 1000"),
        (
            ("", "[job]\nid = 2\n[[event]]\nat_iteration = 3\nstart = 'switch'"),
            r"b.toml: event.start: 'switch' must not run",
        ),
    ],
)
def test_jobs_that_do_not_fit_are_refused(tmp_path: Path, texts: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(tmp_path, *texts)


def test_command_line_is_checked_against_every_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"b.toml: --trial must be .*, got 'fixed:3'"):
        plan(tmp_path, "", "[job]\nid = 2\nworkers = 2", objectives=("fixed:3",))


def test_fault_that_the_command_lines_switch_cannot_inject_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fault.where must be 'host' with network.target = 'bmv2', got 'switch'"):
        plan(tmp_path, "[[fault]]\nwhere = 'switch'\ndrop = 0.1", target="bmv2")


def test_faults_at_the_ports_of_a_jobs_workers() -> None:
    faults = [
        FaultSection(drop=0.5),
        FaultSection(where="switch", workers=(1,), direction="send", drop=0.1, packets=(3, 4)),
        FaultSection(where="switch", direction="receive", delay_ms=2.0),
    ]
    commands = Commands(network=NetworkSection(), topology=Path("t"), certificates=None)
    argv = commands.switch({"5": "s1-eth5"}, faults=port_rules(faults, {0: 5, 1: 6}, {}), fault_seed=7)
    assert [value for flag, value in pairwise(argv) if flag == "--fault"] == [
        "port=6,direction=in,drop=0.1,packets=3+4",
        "port=5,direction=out,delay-ms=2.0",
        "port=6,direction=out,delay-ms=2.0",
    ]
    assert argv[argv.index("--fault-seed") + 1] == "7"
    assert "--fault-seed" not in commands.switch({"5": "s1-eth5"}), "BMv2 has no such flag"


def test_trace_and_pcap_become_flags_of_the_switch(tmp_path: Path) -> None:
    plain = Commands(network=NetworkSection(), topology=Path("t"), certificates=None).switch({"5": "s1-eth5"})
    assert not {"--trace", "--pcap"} & {word.partition("=")[0] for word in plain}
    seeing = Commands(network=NetworkSection(trace=3), topology=Path("t"), certificates=None)
    argv = seeing.switch({"5": "s1-eth5"}, pcap=tmp_path)
    assert ("--trace", "3") in pairwise(argv[: argv.index("--")])
    assert ("--trace-udp-port", "19278") in pairwise(argv), "the trace must show kofn's packets"
    assert f"--pcap={tmp_path}" in argv[: argv.index("--")]
    with pytest.raises(
        ConfigError, match=r"network.trace must be 0 with network.target = 'bmv2', got 3: only 'embedded' traces"
    ):
        NetworkSection(trace=3, target="bmv2").check()


def test_slots_are_aligned() -> None:
    assert slots_end([1024]) == 1024
    assert slots_end([2, 1024]) == 2048
    assert slots_end([1024, 2]) == 1026


@pytest.mark.slow
def test_topology_must_have_a_host_for_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.run.runner.check_machine", lambda target: None)
    star = {
        "hosts": {"h1": {"ip": "10.0.0.1/24"}, "h2": {"ip": "10.0.0.2/24"}},
        "switches": {"s1": {}},
        "links": [["h1", "s1-p1"], ["h2", "s1-p2"]],
    }
    (tmp_path / "star.json").write_text(json.dumps(star))
    paths = files(tmp_path, "[network]\ntopology = 'star.json'\n[job]\nworkers = 2", "[job]\nid = 2\nworkers = 2")
    result = CliRunner().invoke(command, [*map(str, paths), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "star.json must have 4 hosts (job.workers of all jobs are 4)" in result.stderr


def test_each_job_has_its_own_folder_below_the_pass(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "out", ["throughput", "all"], jobs=[1, 7])
    assert [[entry.path.relative_to(folder.path) for entry in entries] for entries in folder.trials] == [
        [Path("throughput/job-1"), Path("throughput/job-7")],
        [Path("all/job-1"), Path("all/job-7")],
    ]
    entry = folder.trials[0][1]
    assert entry.shared_log("switch") == folder.path / "throughput" / "logs" / "switch.log"
    assert entry.log("worker-0") == folder.path / "throughput" / "job-7" / "logs" / "worker-0.log"
    assert folder.jobs[1].config.name == "job-7.toml"
    assert folder.jobs[1].effective.name == "job-7-effective.toml"
    assert (folder.path / "all" / "job-7" / "logs").is_dir()


@pytest.mark.slow
def test_summary_and_report_of_two_jobs_are_complete(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "out", ["all"], jobs=[1, 2])
    configs = plan(tmp_path, "", "[job]\nid = 2\nworkers = 3")
    folder.write_effective(configs)
    folder.write_record(configs, driver="netns")
    write_job(folder.jobs[0], [simulate()])
    write_job(folder.jobs[1], [simulate(workers=3, iterations=20, k=lambda i: 3)])
    summary = RunSummary(jobs=tuple(map(summarise, folder.jobs, configs)))
    assert [job.job for job in summary.jobs] == [1, 2]
    assert summary.failures[0].startswith("job 2: trial all: accuracy 95.0% was not reached in 20 iterations")
    document = summary.to_dict()
    assert document["ok"] is False
    assert [job["ok"] for job in document["jobs"]] == [True, False]
    text = write_report(folder, configs, summary).read_text()
    assert "<h2>Job 1</h2>" in text
    assert "<h2>Job 2</h2>" in text
    assert text.count("<svg") == 6
    lines = [json.loads(line) for line in merge(folder, configs).read_text().splitlines()]
    assert {(line["job"], line["worker"]) for line in lines} == {(1, r) for r in range(4)} | {(2, r) for r in range(3)}
