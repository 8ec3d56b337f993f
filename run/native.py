"""The C that the processes of a run need, compiled once, before they start and wait for each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from kofn.config.schema import NetworkSection
from kofn.host.kernels.kernel import native as compile_kernels
from kofn.host.native import compiled as compile_workers
from kofn.nativebuild.errors import BuildError
from kofn.switch.compiler.build import build_program, compile_runtime
from kofn.switch.compiler.ir.program import Target

PROGRAM = Path(__file__).parents[1] / "p4src" / "build" / "kofn.json"


def compile_native(network: NetworkSection) -> None:
    """Compile what the cache does not have, all at once.  A process that needs what cannot be had says so itself."""
    builds: list[Callable[[], object]] = [compile_workers, compile_kernels]
    if network.target == "embedded":
        builds += [compile_runtime, partial(_compile_program, Target(trace=bool(network.trace)))]
    with ThreadPoolExecutor(len(builds)) as pool:
        list(pool.map(_attempt, builds))


def _compile_program(target: Target) -> None:
    build_program(PROGRAM.read_bytes(), target)


def _attempt(build: Callable[[], object]) -> None:
    with suppress(BuildError, OSError):
        build()
