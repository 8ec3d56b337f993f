"""`python -m kofn_switch`: the embedded switch as a process with simple_switch_grpc's command line."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kofn_common.nativebuild.errors import BuildError, CompileError
from kofn_switch.cli.counts import count_lines, fault_lines
from kofn_switch.cli.inspection import Inside
from kofn_switch.cli.options import Options, check_address, check_interfaces, check_log_file, parse
from kofn_switch.commands.server import serving_commands
from kofn_switch.compiler.build import Built, build_program, compile_runtime
from kofn_switch.compiler.ir.program import Target
from kofn_switch.engine.engine import Engine, Trace
from kofn_switch.engine.pcap_replay import PcapReplay, open_inputs
from kofn_switch.errors import PcapError, ProgramError, SwitchError
from kofn_switch.p4runtime.server import serving
from kofn_switch.p4runtime.uplink import Uplink
from kofn_switch.state.entries import LogReport

LOG = logging.getLogger("switch")
LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
FORMAT = "[%(asctime)s.%(msecs)03d] [bmv2] [%(levelname).1s] [thread %(thread)d] %(message)s"  # as BMv2's
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code, which is 2 when the switch cannot start."""
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        if not options.inside.files:
            check_interfaces(options.ports)
        if options.address is not None:
            check_address(options.address)
        check_log_file(options.log_file)
        _set_up_logging(options)
        for reason in options.ignored:
            print(f"switch: ignored {reason}", file=sys.stderr)
        asyncio.run(run(options))
    except (SwitchError, BuildError, OSError, RuntimeError) as error:
        print(f"switch: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def _trace(inside: Inside) -> Trace | None:
    if not inside.trace:
        return None
    return Trace(packets=inside.trace, file=sys.stdout.fileno(), udp_port=inside.trace_udp_port or 0)


async def run(options: Options) -> None:
    """Serve and forward packets until a signal arrives. Raise SwitchError when the switch cannot start."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    credentials = None if options.tls is None else options.tls.credentials()
    try:
        built = await _build(options)
    except CompileError:
        if ended.is_set():  # Ctrl-C in the terminal has ended the compiler, too
            return
        raise
    engine = Engine(
        options.ports,
        take_outgoing=options.take_outgoing,
        gso=options.gso,
        cpu_port=options.cpu_port,
        faults=options.faults,
        fault_seed=options.fault_seed,
        fault_udp_port=options.fault_udp_port or 0,
        drop_port=options.drop_port,
        priority_queues=options.priority_queues,
        files=options.inside.files,
        pcap=options.inside.pcap,
        counts=options.inside.counts,
        trace=_trace(options.inside),
        dump_c=options.inside.dump_c,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, report, engine, options)
    inputs = open_inputs(options.ports) if options.inside.files else []
    if built is not None:
        await asyncio.to_thread(engine.run, built)
    engine.start()
    log = ReportLog(engine)
    reports = Uplink("log messages", engine.take_reports, log.write)
    try:
        async with contextlib.AsyncExitStack() as servers:
            await servers.enter_async_context(
                serving_commands(engine, options.thrift_port, device_id=options.device_id)
            )
            if options.address is not None:
                server = serving(engine, device_id=options.device_id, address=options.address, credentials=credentials)
                await servers.enter_async_context(server)
                print(f"Server listening on {options.address}", flush=True)
            await _end(ended, PcapReplay(engine, inputs, options.inside.wait_s or 0))
    finally:
        engine.stop()
        await reports.close()
        while left := engine.take_reports(0):
            log.write(left)
        report(engine, options)


async def _end(ended: asyncio.Event, replay: PcapReplay) -> None:
    """Replay the pcap files, if any, until a signal arrives. Raise PcapError when a file is damaged."""
    loop = asyncio.get_running_loop()
    failures: list[PcapError] = []

    def fail(error: PcapError) -> None:
        failures.append(error)
        loop.call_soon_threadsafe(ended.set)

    replay.start(fail)
    await ended.wait()
    replay.stop()
    if failures:
        raise failures[0]


def report(engine: Engine, options: Options) -> None:
    """Print the injected faults of ports that have rules, and the traffic of all ports."""
    for line in (*fault_lines(engine, options.faults), *count_lines(engine, options.ports)):
        print(line, flush=True)


class ReportLog:
    """Writes the program's own messages to the log, and counts messages that are missing there."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lost = 0

    def write(self, reports: list[LogReport]) -> None:
        """Write messages, and a line with the number of messages that the engine dropped meanwhile."""
        for report in reports:
            LOG.log(logging.ERROR if report.failed else logging.INFO, "%s", report.text)
        lost = self._engine.stats().drops["log ring full"]
        if lost > self._lost:
            LOG.warning("%d messages are missing here: they came faster than they could be written", lost - self._lost)
        self._lost = lost


async def _build(options: Options) -> Built | None:
    """Compile the program of the command line, and in parallel the runtime, for the cache."""
    target = Target(
        drop_port=options.drop_port, priority_queues=options.priority_queues, trace=bool(options.inside.trace)
    )
    runtime = asyncio.to_thread(compile_runtime)
    if options.program is None:
        await runtime
        return None
    built, _ = await asyncio.gather(asyncio.to_thread(_program, options.program, target), runtime)
    return built


def _program(path: Path, target: Target) -> Built:
    try:
        return build_program(path.read_bytes(), target)
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from error


def _set_up_logging(options: Options) -> None:
    """Log to the file, to standard output, or (warnings and worse) to standard error."""
    level = LEVELS[options.log_level]
    for library in ("asyncio", "grpc"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if options.log_file is not None:
        logging.basicConfig(filename=options.log_file, level=level, format=FORMAT, datefmt="%H:%M:%S")
    elif options.log_console:
        logging.basicConfig(stream=sys.stdout, level=level, format=FORMAT, datefmt="%H:%M:%S")
    else:
        logging.basicConfig(level=max(level, logging.WARNING), format="switch: %(message)s")


if __name__ == "__main__":
    sys.exit(main())
