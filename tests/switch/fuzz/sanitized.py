"""The environment in which the switch's native code is built and run with sanitizers."""

import os
import shlex
import subprocess
from pathlib import Path

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1")
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python frees little at its end
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def environment(cache: Path) -> dict[str, str]:
    """For a Python process; what it compiles is kept in the folder `cache`."""
    compiler = os.environ.get("CC", "cc")
    named = [*shlex.split(compiler), "-print-file-name=libasan.so"]
    runtime = subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()
    flags = {"CC": f"{compiler} {shlex.join(FLAGS)}", "LD_PRELOAD": runtime, "KOFN_CACHE": str(cache)}
    return {**os.environ, **OPTIONS, **flags}
