"""Compiles the C code of a run's processes once, while the run starts and before workers start."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from kofn_common.config.network import NetworkSection
from kofn_common.nativebuild.errors import BuildError
from kofn_host.errors import LedgerError
from kofn_host.kernels.kernel import kernel
from kofn_host.native import compiled as compile_workers
from kofn_switch.compiler.build import build_program, compile_runtime
from kofn_switch.compiler.ir.program import Target


def builds(network: NetworkSection, program: Path) -> list[Callable[[], object]]:
    """Return what compiles all C code of a run on this machine, also the code of `program`."""
    needed: list[Callable[[], object]] = [compile_workers, kernel]
    if network.target == "embedded":
        needed += [compile_runtime, partial(_compile_program, program, Target(trace=bool(network.trace)))]
    return needed


class NativeBuild:
    """Compiles the C code that the cache lacks, in parallel, from its construction on."""

    def __init__(self, needed: Sequence[Callable[[], object]]) -> None:
        pool = ThreadPoolExecutor(len(needed) or 1)
        self._builds: list[Future[None]] = [pool.submit(_attempt, build) for build in needed]
        pool.shutdown(wait=False)

    @property
    def done(self) -> bool:
        return all(build.done() for build in self._builds)

    async def wait(self) -> None:
        """Wait for all builds. Errors are not reported here, but by the process that needs the code."""
        await asyncio.gather(*map(asyncio.wrap_future, self._builds))


def _compile_program(program: Path, target: Target) -> None:
    build_program(program.read_bytes(), target)


def _attempt(build: Callable[[], object]) -> None:
    with suppress(BuildError, OSError, LedgerError):
        build()
