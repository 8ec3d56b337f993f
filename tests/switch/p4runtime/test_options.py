"""The command line: accepted options, and the message for each mistake."""

import socket
from pathlib import Path

import pytest

from kofn_switch.cli.inspection import TRACE_ALL
from kofn_switch.cli.options import TARGET_FLAGS, OptionsError, check_address, check_interfaces, check_log_file, parse
from kofn_switch.cli.tls import Tls

FULL = (
    "--no-p4 -i 1@s1-eth1 -i 2@s1-eth2 --device-id 7 --log-console -L debug --thrift-port 9090"
    " -- --grpc-server-addr 127.0.0.1:50051 --cpu-port 511 --drop-port 510 --priority-queues 8"
)


def test_simple_switch_grpcs_command_line_is_understood() -> None:
    options = parse(FULL.split())
    assert options.program is None
    assert options.ports == {1: "s1-eth1", 2: "s1-eth2"}
    assert (options.device_id, options.address, options.cpu_port) == (7, "127.0.0.1:50051", 511)
    assert (options.log_console, options.log_level) == (True, "debug")
    assert (options.drop_port, options.priority_queues) == (510, 8)
    assert (options.thrift_port, options.ignored) == (9090, ())


@pytest.mark.parametrize(
    "flags",
    [
        "--nanolog ipc:///tmp/bm-0-log.ipc --debugger --debugger-addr ipc:///x --log-file-max-size 5 --log-flush",
        "--notifications-addr ipc:///x --restore-state file --packet-in ipc:///x --max-port-count 9",
        "-- --disable-swap --load-modules a.so --dp-grpc-server-addr 0.0.0.0:50052",
        "-- --max-mc-groups 9 --max-l1-entries 9 --max-l2-entries 9 --enable-swap",
    ],
)
def test_flags_without_effect_are_accepted_and_named(flags: str) -> None:
    names = [word for word in flags.split() if word.startswith("--") and word != "--"]
    told = parse(["--no-p4", *flags.split()]).ignored
    assert sorted(reason.split()[0].rstrip(":") for reason in told) == sorted(names)


@pytest.mark.parametrize(("flag", "start"), [("-v", "kofn-switch "), ("--json-version", "2.")])
def test_versions_are_printed(flag: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([flag])
    assert capsys.readouterr().out.startswith(start)


def test_bmv2s_most_verbose_log_traces_packets() -> None:
    assert parse(["--no-p4", "--log-console", "-L", "trace"]).inside.trace == TRACE_ALL
    assert parse(["--no-p4", "--log-console"]).inside.trace == 0


def test_a_program_is_the_only_required_argument(tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    program.touch()
    options = parse([str(program)])
    assert (options.program, options.ports, options.device_id) == (program, {}, 0)
    assert (options.address, options.cpu_port) == ("0.0.0.0:9559", None)
    assert (options.drop_port, options.priority_queues) == (511, 1)


def test_tls_takes_simple_switch_grpcs_flags() -> None:
    files = "--grpc-server-cert c --grpc-server-key k --grpc-server-cacert a"
    options = parse(f"--no-p4 -- --grpc-server-ssl {files} --grpc-server-with-client-auth".split())
    assert options.tls == Tls(certificate=Path("c"), key=Path("k"), authority=Path("a"), client_auth=True)
    assert options.ignored == ()
    options = parse(f"--no-p4 -- --grpc-server-ssl {files}".split())
    assert options.tls == Tls(certificate=Path("c"), key=Path("k"), authority=Path("a"), client_auth=False)
    assert options.ignored == ("--grpc-server-cacert: --grpc-server-with-client-auth is not given",)
    options = parse(f"--no-p4 -- {files}".split())
    assert options.tls is None
    assert options.ignored[0] == "--grpc-server-cert: --grpc-server-ssl is not given"
    assert len(options.ignored) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "nothing to run: give a PROGRAM.json, or --no-p4"),
        ("absent.json", "absent.json: no such file; PROGRAM.json is what p4c --target bmv2 writes"),
        ("--no-p4 x.json", "--no-p4 starts without a program, but x.json is given"),
        ("/", "/: not a file; PROGRAM.json is what p4c --target bmv2 writes"),
        ("--no-p4 --bogus", "unrecognized arguments: --bogus; see --help"),
        ("--no-p4 -- --bogus 1", "unrecognized arguments: --bogus 1; see --help"),
        (
            "--no-p4 --cpu-port 255",
            "--cpu-port must come after --, because it is a target flag: --no-p4 -- --cpu-port ...",
        ),
        ("--no-p4 -i eth0", "-i eth0: needs PORT@INTERFACE with a port from 0 to 511, as in -i 1@s1-eth1"),
        ("--no-p4 -i 512@eth0", "-i 512@eth0: needs PORT@INTERFACE with a port from 0 to 511"),
        ("--no-p4 -i 511@eth0", "-i 511@eth0: port 511 is the port that drops; --drop-port chooses another"),
        ("--no-p4 -i 3@eth0 -- --drop-port 3", "-i 3@eth0: port 3 is the port that drops"),
        ("--no-p4 -i 1@a -i 1@b", "-i 1@b: port 1 is a already; each port is given once"),
        ("--no-p4 -i 1@a -i 2@a", "-i 2@a: interface a has a port already"),
        ("--no-p4 --device-id -1", "'-1' is not a number from 0 to 2**64 - 1"),
        ("--no-p4 -L loud", "invalid choice: 'loud' (choose from"),
        ("--no-p4 --thrift-port x", "'x' is not a TCP or UDP port, 1 to 65535"),
        ("--no-p4 --pcap=/nonesuch", "argument --pcap: /nonesuch: there is no such directory"),
        ("--no-p4 --use-files -1", "argument --use-files: '-1' is not a whole number of seconds, 0 or more"),
        ("--no-p4 --use-files 1.5", "argument --use-files: '1.5' is not a whole number of seconds, 0 or more"),
        ("--no-p4 --trace 0", "argument --trace: '0' is not a number of packets, 1 or more"),
        ("--no-p4 --trace -1", "argument --trace: '-1' is not a number of packets, 1 or more"),
        ("--no-p4 --trace=some", "argument --trace: 'some' is not a number of packets, 1 or more"),
        ("--no-p4 --log-console --log-file x", "--log-console and --log-file exclude each other"),
        (
            "--no-p4 -- --grpc-server-addr 50051",
            "--grpc-server-addr 50051: needs HOST:PORT with a port from 1 to 65535",
        ),
        ("--no-p4 --grpc-server-ssl", "--grpc-server-ssl must come after --, because it is a target flag"),
        ("--no-p4 -- --grpc-server-ssl", "--grpc-server-ssl must come with --grpc-server-cert FILE"),
        (
            "--no-p4 -- --grpc-server-ssl --grpc-server-cert x",
            "--grpc-server-ssl must come with --grpc-server-key FILE",
        ),
        (
            "--no-p4 -- --grpc-server-ssl --grpc-server-cert x --grpc-server-key y --grpc-server-with-client-auth",
            "--grpc-server-ssl must come with --grpc-server-cacert FILE",
        ),
        ("--no-p4 -- --cpu-port 0", "--cpu-port 0: needs a port from 1 to 511"),
        ("--no-p4 -- --cpu-port 999", "--cpu-port 999: needs a port from 1 to 511"),
        ("--no-p4 -- --cpu-port 511", "--cpu-port 511: that is the drop port; --drop-port chooses another"),
        ("--no-p4 -- --drop-port 512", "--drop-port 512: needs a port from 0 to 511"),
        ("--no-p4 -- --priority-queues 0", "--priority-queues 0: needs a number from 1 to 8"),
        ("--no-p4 -- --priority-queues 9", "--priority-queues 9: needs a number from 1 to 8, a priority has 3 bits"),
        ("--no-p4 -i 255@a -- --cpu-port 255", "--cpu-port 255: that port is a already"),
    ],
)
def test_mistakes_give_a_one_line_message(line: str, words: str) -> None:
    with pytest.raises(OptionsError) as error:
        parse(line.split())
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_optional_values_do_not_take_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    program.touch()
    inside = parse(["--trace", "--pcap", str(program)]).inside
    assert (inside.trace, inside.pcap, inside.wait_s) == (TRACE_ALL, Path("."), None)
    inside = parse(["--pcap", str(tmp_path), "--trace", "3", str(program)]).inside
    assert (inside.trace, inside.pcap) == (3, tmp_path)


def test_p4cs_harness_options_are_understood(tmp_path: Path) -> None:
    program = tmp_path / "program.json"
    program.touch()
    line = "--log-file switch.log --log-flush --use-files 0 --dump-packet-data 10240 --thrift-port 9100 --device-id 10"
    options = parse([*line.split(), "-i 0@pcap0", "-i 12@pcap12", str(program)])
    assert options.ports == {0: "pcap0", 12: "pcap12"}
    assert (options.inside.wait_s, options.inside.files) == (0, True)
    assert options.ignored == (
        "--dump-packet-data 10240: --trace shows packets, --pcap keeps them",
        "--log-flush: every line is flushed",
    )
    options = parse([*line.split(), "--pcap", str(program)])
    assert options.inside.pcap is None
    assert options.ignored[0] == "--pcap: with --use-files the packets are in files anyway"


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "python -m kofn_switch --no-p4 -i 1@s1-eth1" in shown
    assert all(flag in shown for flag in TARGET_FLAGS)
    assert "--grpc-server-addr HOST:PORT" in shown


def test_missing_interface_is_named_with_the_existing_ones() -> None:
    with pytest.raises(OptionsError, match=r"^port 3: no interface is named nonesuch0; there are .*\blo\b"):
        check_interfaces({3: "nonesuch0"})


def test_address_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OptionsError, match=f"{address}: cannot listen: another process listens there"):
            check_address(address)


def test_unix_socket_needs_its_directory() -> None:
    with pytest.raises(OptionsError, match=r"unix:/nonesuch/s: cannot listen: there is no directory /nonesuch$"):
        check_address("unix:/nonesuch/s")


def test_log_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_log_file(tmp_path / "switch.log")
    with pytest.raises(OptionsError, match=r"^--log-file /.*: cannot be written: Is a directory$"):
        check_log_file(tmp_path)
