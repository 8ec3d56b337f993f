"""The `kofn` command line with a controller, and without one."""

import asyncio
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kofn.cli import main as cli
from kofn.cli.main import main
from kofn_common.config.objectives import DEFAULT, OBJECTIVES
from kofn_common.extras import EXTRAS
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.address import checked_address
from kofn_common.rpc.document import document
from tests.controller.harness import NO_SWITCH, Running, controller, until


def invoke(*arguments: str, controller: str | None = NO_SWITCH) -> Result:
    environment = {"KOFN_CONTROLLER": controller, "KOFN_STATE_DIR": "/nowhere", "COLUMNS": "140"}
    return CliRunner().invoke(main, arguments, env=environment)


def with_controller(scenario: Callable[[Running, Callable[..., Awaitable[Result]]], Awaitable[None]]) -> None:
    """Run a scenario; its second argument invokes the command line in a thread, like another process."""

    async def run() -> None:
        async with controller(4) as running:

            async def kofn(*arguments: str) -> Result:
                return await asyncio.to_thread(invoke, *arguments, controller=running.address)

            await scenario(running, kofn)

    asyncio.run(run())


async def train(running: Running, iterations: int = 20) -> None:
    random = np.random.default_rng(1)
    workers = await running.start_all()
    for iteration in range(1, iterations + 1):
        for worker in workers:
            time_s = 0.010 + (0.050 if worker.rank == 3 else 0.0) + random.exponential(0.0003)
            await worker.report(iteration, time_s, late=worker.rank == 3)
    await until(lambda: running.session.control_loop.measurements.reports[3] == iterations)
    await until(lambda: running.session.control_loop.k == 3)


def test_every_command_shows_a_running_job() -> None:
    async def scenario(running: Running, kofn: Callable[..., Awaitable[Result]]) -> None:
        await train(running)
        status = await kofn("status")
        assert status.exit_code == 0, status.output
        assert "k = 3 of 4 live workers, objective throughput, iteration 20" in status.output
        assert f"switch {NO_SWITCH}: NOT CONNECTED" in status.output
        assert "k 4 -> 3 (throughput: E_3[T]" in status.output
        k = await kofn("k")
        assert "<- in force (cheapest)" in k.output
        assert "k = 3: the least expected time for one round of all 4 workers' blocks." in k.output
        lambdas = await kofn("lambda")
        assert "95 % interval" in lambdas.output
        assert "s (block time without blocking) 10." in lambdas.output

    with_controller(scenario)


def test_json_has_the_protocols_names() -> None:
    async def scenario(running: Running, kofn: Callable[..., Awaitable[Result]]) -> None:
        await train(running)
        status = json.loads((await kofn("status", "--json")).output)
        assert (status["k"], status["live"], status["switch_connected"]) == (3, 4, False)
        assert [worker["late"] for worker in status["worker"]] == [0, 0, 0, 20]
        assert all(isinstance(worker["lambda_high_s"], float) for worker in status["worker"])
        k = json.loads((await kofn("k", "--json")).output)
        assert [entry["k"] for entry in k["expected"]] == [1, 2, 3, 4]
        lambdas = json.loads((await kofn("lambda", "--json")).output)
        assert lambdas["worker"][3]["lambda_s"] == pytest.approx(0.05, rel=0.1)

    with_controller(scenario)


def test_json_has_numbers_in_the_protocols_order() -> None:
    full = pb.Status(
        k=3, worker=[pb.WorkerStatus(rank=1, samples=16, silent_s=0.5)], counters={"LATE": 2**40, "ADDED": 7}
    )
    plain = document(full)
    assert list(plain) == list(document(pb.Status())) == [field.name for field in pb.Status.DESCRIPTOR.fields]
    assert list(plain["worker"][0]) == [field.name for field in pb.WorkerStatus.DESCRIPTOR.fields]
    assert list(plain["counters"].items()) == [("ADDED", 7), ("LATE", 2**40)]
    assert (plain["worker"][0]["samples"], plain["worker"][0]["late"], plain["worker"][0]["live"]) == (16, 0, False)
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("objective", "k", "mark", "sentence"),
    [
        (
            "throughput",
            3,
            "<- in force (cheapest)",
            "k = 3: the least expected time for one round of all 4 workers' blocks.",
        ),
        ("2", 2, "<- in force (set by you)", "k = 2: set by you (objective 'fixed:2'). The cheapest is k = 3;"),
        ("all", 4, "<- in force (all workers)", "k = 4: objective 'all' waits for every live worker. The cheapest is"),
    ],
)
def test_costs_are_described_for_every_objective(objective: str, k: int, mark: str, sentence: str) -> None:
    async def scenario(running: Running, kofn: Callable[..., Awaitable[Result]]) -> None:
        await train(running)
        await kofn("set-k", objective)
        answer = json.loads((await kofn("k", "--json")).output)
        for entry in answer["expected"]:
            assert entry["cost"] == pytest.approx(entry["iteration_s"] * 4 / entry["k"])
            assert entry["predicted_s"] >= 0.95 * entry["iteration_s"]
            assert entry["in_force"] == (mark[len("<- in force (") : -1] if entry["k"] == k else "")
        output = (await kofn("k")).output
        assert "  x n/k  predicted  measured" in output
        rows = output.splitlines()
        assert [row.split()[0] for row in rows if row.rstrip().endswith(mark)] == [str(k)]
        assert [row.split()[0] for row in rows if row.rstrip().endswith("(cheapest)")] == ["3"]
        assert sentence in output

    with_controller(scenario)


def test_nothing_is_invented_before_the_first_report() -> None:
    async def scenario(running: Running, kofn: Callable[..., Awaitable[Result]]) -> None:
        assert "no reports yet" in (await kofn("status")).output
        assert "k = 4: still measuring" in (await kofn("k")).output
        assert json.loads((await kofn("lambda", "--json")).output)["worker"][0]["samples"] == 0

    with_controller(scenario)


@pytest.mark.parametrize(
    ("argument", "k", "objective"),
    [
        ("2", 2, "fixed:2"),
        ("fixed:1", 1, "fixed:1"),
        ("all", 4, "all"),
        ("auto", 2, DEFAULT),
        ("throughput", 4, "throughput"),
    ],
)
def test_set_k_sets_the_objective(argument: str, k: int, objective: str) -> None:
    async def scenario(running: Running, kofn: Callable[..., Awaitable[Result]]) -> None:
        await running.start_all()
        result = await kofn("set-k", argument)
        assert result.output == f"k = {k} of 4 live workers, objective {objective}\n"
        assert json.loads((await kofn("set-k", argument, "--json")).output)["k"] == k

    with_controller(scenario)


def test_set_k_refuses_invalid_objectives() -> None:
    async def scenario(running: Running, kofn: Callable[..., Awaitable[Result]]) -> None:
        result = await kofn("set-k", "9")
        assert result.exit_code == 2
        assert result.output == (
            f"kofn: objective must be {', '.join(OBJECTIVES.names)}, module:Name, or fixed:K, merge:K, async:K, "
            "batch-sync:K, stash:K, abort:K, drop:K with 1 <= K <= workers = 4, got 'fixed:9'\n"
        )

    with_controller(scenario)


def test_watching_ends_with_the_controller() -> None:
    async def run() -> None:
        async with controller(2) as running:
            code = "from kofn.cli.main import main; main()"
            options = ["watch", "--interval", "0.05", "--controller", running.address]
            watching = await asyncio.create_subprocess_exec(
                sys.executable, "-uc", code, *options, stdout=asyncio.subprocess.PIPE
            )
            assert watching.stdout is not None
            line = await watching.stdout.readline()
            assert line == b"iteration 0: k = 2 of 0 live (throughput), lambda [0.0 0.0] ms\n"
            await running.worker(0).hello()
            line = await watching.stdout.readline()
            assert line.startswith(b"iteration 0: k = 2 of 1 live")
        assert await watching.wait() == 0

    asyncio.run(run())


@pytest.mark.parametrize("command", [["status"], ["k"], ["lambda", "--json"], ["watch"], ["set-k", "2"]])
def test_absent_controller_is_reported(command: list[str]) -> None:
    result = invoke(*command)
    assert result.exit_code == 3
    assert (
        result.output == f"kofn: no controller answers at {NO_SWITCH}: `make run` or `kofn run` starts a controller\n"
    )


@pytest.mark.parametrize(("command", "who"), [("status --controller", "controller"), ("slots --switch", "switch")])
def test_host_without_an_address_is_named(command: str, who: str) -> None:
    result = invoke(*command.split(), "nowhere.invalid:50052")
    assert result.exit_code == 3
    assert result.output.startswith(f"kofn: no {who} answers at nowhere.invalid:50052: nowhere.invalid: ")


@pytest.mark.parametrize(
    "command",
    [
        "status --controller",
        "slots --switch",
        "switch --tunnels 2 --p4runtime",
        "controller job.toml --p4runtime",
        "controller job.toml --listen",
        "worker job.toml --rank 0 --switch s --controller",
        "doctor --remote --switch s --controller",
        "doctor --p4runtime",
    ],
)
@pytest.mark.parametrize("address", ["abc", "127.0.0.1", ":50052", "h:x", "h:0", "h:65536", "http://h:1", "::1:50052"])
def test_invalid_address_is_named(command: str, address: str) -> None:
    result = invoke(*command.split(), address)
    assert result.exit_code == 2
    assert f"{address!r} is no HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:50052" in result.output


@pytest.mark.parametrize(
    "command",
    [
        "slots --interval",
        "watch --interval",
        "controller job.toml --wait",
    ],
)
def test_non_finite_number_is_named(command: str) -> None:
    result = invoke(*command.split(), "nan")
    assert (result.exit_code, "nan is not finite" in result.output) == (2, True)


def test_controllers_topology_file_is_no_record_of_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def become(path: str, argv: list[str], environment: dict[str, str]) -> None:
        topology = Path(argv[argv.index("--topology") + 1])
        assert topology.is_relative_to(tmp_path)
        assert topology.read_text()
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", become)
    (tmp_path / "job.toml").write_text("")
    environment = {"KOFN_STATE_DIR": str(tmp_path / "state")}
    result = CliRunner().invoke(main, ["controller", str(tmp_path / "job.toml")], env=environment)
    assert result.exit_code == 0, result.output
    assert not [*(tmp_path / "state").glob("*.json")]  # mininet.records


@pytest.mark.parametrize("option", ["--rank 3", "--switch s", "--certs c", "--p4runtime h:1", "--p4runtime-certs c"])
def test_remote_options_of_doctor_need_remote(option: str) -> None:
    result = invoke("doctor", *option.split())
    assert result.exit_code == 2
    assert f"{option.split(maxsplit=1)[0]} needs --remote" in result.output


@pytest.mark.parametrize("address", ["localhost:1", "[::1]:65535", "node-1.example.org:50052"])
def test_valid_addresses_are_accepted(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    "command", ["status", "k", "lambda", "watch", "set-k", "run", "stop", "clean", "doctor", "certs"]
)
def test_help_is_printed(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"Usage: main {command}" in result.output


def test_only_installed_commands_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.LAZY, "magic", cli.Lazy("kofn.cli.magic", "command", ""))
    output = invoke("--help").output
    assert [name in output for name in ("  doctor ", "  certs ", "  magic ")] == [True, True, False]
    result = invoke("magic")
    assert result.exit_code == 2
    assert "No such command 'magic'" in result.output


def test_inspecting_commands_import_no_libraries_of_runs() -> None:
    code = f"import sys, kofn.cli.main; print([name for name in {list(EXTRAS)} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_help_has_every_command_on_a_line_and_imports_none() -> None:
    code = """if True:
        import contextlib, sys
        from kofn.cli.main import LAZY, main
        with contextlib.suppress(SystemExit):
            main(["--help"])
        print([lazy.module for lazy in LAZY.values() if lazy.module in sys.modules])
    """
    lines = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[-1] == "[]"
    listed = [line.split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 : -1]]
    assert listed == [[name, lazy.text] for name, lazy in cli.LAZY.items()]


def test_version_is_the_packages() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.split()[1] == importlib.metadata.version("kofn")


def test_ctrl_c_while_libraries_are_loaded_ends_quietly(tmp_path: Path) -> None:
    """There is one line at most, no traceback, and exit code 130."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from kofn.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_a_command_is_loaded_ends_quietly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.LAZY, "magic", cli.Lazy("interrupted", "command", ""))
    result = invoke("magic")
    assert (result.exit_code, result.output) == (130, "")


def test_misspelt_command_is_answered_with_a_suggestion() -> None:
    result = invoke("simulat")
    assert result.exit_code == 2
    assert "no command 'simulat': did you mean 'simulate'?" in result.stderr
    assert "No such command 'xyzzy'" in invoke("xyzzy").stderr


@pytest.mark.parametrize("error", [ImportError("libblas.so: failed to map segment from shared object"), MemoryError()])
def test_too_little_memory_is_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(_: str) -> None:
        raise error

    monkeypatch.setattr("kofn.cli.main.importlib.import_module", without_memory)
    ended = CliRunner().invoke(main, ["simulate"])
    assert (ended.exit_code, ended.output.count("\n")) == (1, 1)
    assert ended.output.startswith("kofn: out of memory, see `ulimit -v`")
