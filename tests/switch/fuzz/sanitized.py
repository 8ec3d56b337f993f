"""The environment for building and running the switch's native code with sanitizers."""

import os
import shlex
import subprocess
from pathlib import Path

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1")
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python frees little at exit
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def environment(cache: Path) -> dict[str, str]:
    """Return the environment of a Python process; its compiled code is kept in the folder `cache`."""
    compiler = os.environ.get("CC", "cc")
    named = [*shlex.split(compiler), "-print-file-name=libasan.so"]
    runtime = subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()
    flags = {"CC": f"{compiler} {shlex.join(FLAGS)}", "LD_PRELOAD": runtime, "KOFN_CACHE": str(cache)}
    return {**os.environ, **OPTIONS, **flags}
