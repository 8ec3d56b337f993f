"""The layout of structs in the words of the compiler and of ctypes."""

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kofn_common.nativebuild.library import compiler_command
from kofn_common.nativebuild.struct_text import Declarations, Output, class_name

KINDS = {
    **{"double": "c_double", "float": "c_float", "char": "c_char"},
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""The ctypes class of each type that _Generic tells apart."""

KINDS_OF = {getattr(ctypes, name): name for name in KINDS.values()}


def compiled_layout(folder: Path, output: Output, classes: dict[str, Any]) -> list[str]:
    """Return size, and offset, size and type of each field, in the compiler's words."""
    kinds = ", ".join(f'{name}: "{kind}"' for name, kind in KINDS.items())
    lines = []
    for tag, each in classes.items():
        if not output.structs.get(tag):
            lines.append(f'printf("{tag} %zu\\n", sizeof(struct {tag}));')
        for name, kind in each._fields_:
            field = f"((struct {tag} *)0)->{name}"
            size = f"sizeof({field})" if ctypes.sizeof(kind) else "(size_t)0"
            told = (
                f'_Generic({field}, {kinds}, default: "other")' if issubclass(kind, ctypes._SimpleCData) else '"other"'
            )
            lines.append(f'printf("{tag}.{name} %zu %zu %s\\n", offsetof(struct {tag}, {name}), {size}, {told});')
    includes = [*(f'#include "{name}"' for name in output.headers), "#include <stddef.h>", "#include <stdio.h>"]
    source = folder / "layout.c"
    source.write_text("\n".join([*includes, "int main(void) {", *lines, "return 0; }"]))
    search = [f"-I{each}" for each in output.folders]
    command = [*compiler_command(), "-std=gnu11", "-D_GNU_SOURCE", *search, "-o", str(folder / "layout"), str(source)]
    subprocess.run(command, check=True)
    return subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout.splitlines()


def python_layout(output: Output, classes: dict[str, Any]) -> list[str]:
    lines = []
    for tag, each in classes.items():
        if not output.structs.get(tag):
            lines.append(f"{tag} {ctypes.sizeof(each)}")
        for name, kind in each._fields_:
            place = getattr(each, name)
            told = KINDS_OF.get(kind, "other")
            lines.append(f"{tag}.{name} {place.offset} {place.size} {told}")
    return lines


def classes_of(names: Mapping[str, Any], output: Output) -> dict[str, Any]:
    """Return a generated module's class of each struct."""
    found = Declarations(output.folders, output.headers)
    return {tag: names[class_name(tag)] for tag in found.structs_of(output.structs)}
