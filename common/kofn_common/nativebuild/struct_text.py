"""Generates ctypes classes from the structs and enums of C headers (`make header`).

`python -m kofn_common.nativebuild.struct_text` writes one module for each entry of OUTPUTS; tests fail while a written
module is stale. The C headers are the only definition: Python code subclasses the generated classes and repeats no
field. A declaration whose layout is not certain raises StructError. Only `make header` and the tests run this module.
"""

import keyword
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pycparser import CParser, c_ast
from pycparser.c_parser import ParseError

from kofn_common.nativebuild.library import compiler_command

ROOT = Path(__file__).resolve().parents[3]

SCALARS = {
    **{f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"char": "c_char", "int": "c_int", "unsigned int": "c_uint", "float": "c_float", "double": "c_double"},
    "size_t": "c_size_t",
}
"""The ctypes class of each C type that a field may have."""

OPAQUE = ("atomic_int", "pthread_cond_t", "pthread_mutex_t", "pthread_t")
"""Types of the C library that headers name; a generated struct must not contain one."""

OPERATORS = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "<<": int.__lshift__,
    ">>": int.__rshift__,
    "|": int.__or__,
    "&": int.__and__,
}

HEAD = '''"""The structs and enums of C headers, for ctypes. `make header` generates this file."""

import ctypes
{imports}
'''


class StructError(Exception):
    """A declaration must have a layout that this module can tell; the message names the declaration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A generated module: the structs and enums that it wants from `headers`, which are in `folders`.

    `structs` maps each wanted struct to the last field that Python reads; an empty string means all fields. A struct
    inside of a wanted struct is generated as well.
    """

    path: Path
    folders: Sequence[Path]
    headers: Sequence[str]
    structs: Mapping[str, str]
    enums: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StructField:
    """A field of a struct: its class in ctypes' terms, and the Python type of its value."""

    name: str
    kind: str
    value: str


WIRE = ROOT / "common" / "kofn_common" / "wire"
HOST = ROOT / "host" / "kofn_host"
SWITCH = ROOT / "switch" / "kofn_switch"

SIM = ROOT / "kofn" / "sim"
HOST_FOLDERS = (WIRE, HOST / "protocol", HOST / "compression", HOST / "engine")

OUTPUTS = (
    Output(
        path=HOST / "structs.py",
        folders=HOST_FOLDERS,
        headers=("engine.h", "leaf.h", "ledger_rows.h", "slots.h"),
        structs={
            **{"core": "given", "slot_query": "members", "slots": "generation", "leaf": "generation"},
            **dict.fromkeys(("core_places", "instruction", "packed", "result", "statistics", "waiting"), ""),
            **dict.fromkeys(("ledger", "record", "sent", "journal", "sums", "reduction", "pacer", "traffic"), ""),
        },
        enums=("instruction_kind",),
    ),
    Output(
        path=SWITCH / "structs.py",
        folders=(SWITCH / "runtime",),
        headers=("core.h", "meter.h"),
        structs=dict.fromkeys(("count", "replica", "packet_time", "fault_rule", "fault_counts"), ""),
    ),
    Output(
        path=SIM / "structs.py",
        folders=(*HOST_FOLDERS, SIM),
        headers=("host.h",),
        structs={"clock": "now_s", "link": "bytes", "host": "failed"},
    ),
)


class Declarations:
    """The structs and enums that C headers declare."""

    def __init__(self, folders: Sequence[Path], headers: Sequence[str]) -> None:
        """Parse the headers. Raise StructError if they hold more than plain C."""
        self.structs: dict[str, c_ast.Struct] = {}
        self.enums: dict[str, c_ast.Enum] = {}
        self.numbers: dict[str, int] = {}
        try:
            unit = CParser().parse(_preprocessed(folders, headers))
        except ParseError as error:
            raise StructError(f"headers must be plain C: {error}") from error
        _Collector(self).visit(unit)

    def structs_of(self, wanted: Mapping[str, str]) -> dict[str, list[StructField]]:
        """Return the fields of the wanted structs, each after the structs that it contains. Raise StructError."""
        found: dict[str, list[StructField]] = {}
        for tag, last in wanted.items():
            fields = self.fields(tag, last)
            inner = {
                kind: "" for kind in self.structs if any(class_name(kind) in field.kind.split() for field in fields)
            }
            found |= {kind: of for kind, of in self.structs_of(inner).items() if kind not in found}
            found[tag] = fields
        return found

    def fields(self, tag: str, last: str = "") -> list[StructField]:
        """Return a struct's fields up to `last`, or all. Raise StructError if a layout is not certain."""
        struct = self.structs.get(tag)
        if struct is None:
            raise StructError(f"struct {tag} must be declared completely, found no fields")
        names = [decl.name for decl in struct.decls]
        if last and last not in names:
            raise StructError(f"struct {tag} must have a field {last}, found {', '.join(map(str, names))}")
        return [self._field(tag, decl) for decl in struct.decls[: names.index(last) + 1 if last else None]]

    def members(self, enum: str) -> dict[str, int]:
        """Return an enum's names and numbers."""
        if enum not in self.enums:
            raise StructError(f"enum {enum} must be declared, found none")
        return {enumerator.name: self.numbers[enumerator.name] for enumerator in self.enums[enum].values.enumerators}

    def number(self, node: Any, where: str) -> int:
        """Return the value of a constant expression."""
        if isinstance(node, c_ast.Constant) and "int" in node.type:
            return int(node.value.rstrip("uUlL"), 0)
        if isinstance(node, c_ast.ID) and node.name in self.numbers:
            return self.numbers[node.name]
        if isinstance(node, c_ast.UnaryOp) and node.op == "-":
            return -self.number(node.expr, where)
        if isinstance(node, c_ast.BinaryOp) and node.op in OPERATORS:
            return OPERATORS[node.op](self.number(node.left, where), self.number(node.right, where))
        raise StructError(f"{where} must consist of numbers and {' '.join(OPERATORS)}, found {type(node).__name__}")

    def _field(self, tag: str, decl: Any) -> StructField:
        where = f"struct {tag}: {getattr(decl, 'name', None)}"
        if not isinstance(decl, c_ast.Decl) or not decl.name or keyword.iskeyword(decl.name):
            raise StructError(f"{where} must be a field with a name that Python can use, found {type(decl).__name__}")
        if decl.bitsize is not None or decl.align:
            raise StructError(f"{where} must have neither a width in bits nor an alignment")
        return StructField(name=decl.name, kind=self._kind(decl.type, where), value=self._value(decl.type, where))

    def _kind(self, node: Any, where: str) -> str:
        """Return the name of a type's ctypes class; every pointer is a c_void_p."""
        if isinstance(node, c_ast.PtrDecl):
            return "c_void_p"
        if isinstance(node, c_ast.ArrayDecl):
            length = 0 if node.dim is None else self.number(node.dim, where)
            return f"{self._kind(node.type, where)} * {length}"
        if not isinstance(node, c_ast.TypeDecl) or "_Atomic" in node.quals:
            raise StructError(f"{where} must be a number, an enum, a pointer, a struct or an array of them")
        return self._plain(node.type, where)

    def _plain(self, node: Any, where: str) -> str:
        name = " ".join(node.names) if isinstance(node, c_ast.IdentifierType) else node.name
        if isinstance(node, c_ast.IdentifierType) and name in SCALARS:
            return SCALARS[name]
        if isinstance(node, c_ast.Struct) and name in self.structs:
            return class_name(name)
        if isinstance(node, c_ast.Enum) and name in self.enums:
            return "c_int" if min(self.members(name).values()) < 0 else "c_uint"
        raise StructError(f"{where} must have a type with a known size, found {type(node).__name__} {name}")

    def _value(self, node: Any, where: str) -> str:
        """Return the Python type of a field's value; a pointer's value is an integer, or None for NULL."""
        if isinstance(node, c_ast.PtrDecl):
            return "Any"
        kind = self._kind(node, where)
        if isinstance(node, c_ast.ArrayDecl):
            nested = isinstance(node.type, c_ast.ArrayDecl)
            inner = self._value(node.type, where) if nested else self._kind(node.type, where)
            return "bytes" if inner == "c_char" else f"ctypes.Array[{inner}]"
        return {"c_char": "bytes", "c_float": "float", "c_double": "float"}.get(kind, "int" if "_" in kind else kind)


class _Collector(c_ast.NodeVisitor):  # type: ignore[misc]  # pycparser has no types
    """Collects declarations; a pragma is an error, because it may change layouts."""

    def __init__(self, into: Declarations) -> None:
        self._into = into

    def visit_Struct(self, node: c_ast.Struct) -> None:  # noqa: N802
        if node.decls is not None and node.name:
            self._into.structs[node.name] = node
        self.generic_visit(node)

    def visit_Enum(self, node: c_ast.Enum) -> None:  # noqa: N802
        if node.values is None:
            return
        if node.name:
            self._into.enums[node.name] = node
        number = -1
        for entry in node.values.enumerators:
            number = number + 1 if entry.value is None else self._into.number(entry.value, f"enumerator {entry.name}")
            self._into.numbers[entry.name] = number

    def visit_Pragma(self, node: c_ast.Pragma) -> None:  # noqa: N802
        raise StructError(f"headers must have no pragma except `once`, found {node.string}")


def module_text(output: Output) -> str:
    """Return the text of a generated module. Raise StructError."""
    found = Declarations(output.folders, output.headers)
    enums = "".join(_enum_text(enum, found.members(enum)) for enum in output.enums)
    fields = found.structs_of(output.structs)
    structs = "".join(_struct_text(tag, output.structs.get(tag, ""), fields[tag]) for tag in fields)
    used = set(re.findall(r"\bc_\w+", structs)) & {*SCALARS.values(), "c_void_p"}
    names = sorted(used, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    lines = [f"from ctypes import {', '.join(names)}"] + ["from enum import IntEnum"] * bool(enums)
    lines += ["from typing import Any"] * ("Any" in structs)
    return HEAD.format(imports="\n".join(lines)) + enums + structs


def class_name(tag: str) -> str:
    """Return the Python name of a struct or enum."""
    return "".join(word.title() for word in tag.split("_"))


def _enum_text(enum: str, members: Mapping[str, int]) -> str:
    lines = "".join(f"    {name} = {number}\n" for name, number in members.items())
    return f'\n\nclass {class_name(enum)}(IntEnum):\n    """enum {enum}."""\n\n{lines}'


def _struct_text(tag: str, last: str, fields: Sequence[StructField]) -> str:
    values = "".join(f"    {field.name}: {field.value}\n" for field in fields)
    kinds = "".join(f'        ("{field.name}", {field.kind}),\n' for field in fields)
    return (
        f'\n\nclass {class_name(tag)}(ctypes.Structure):\n    """struct {tag}{last and f", up to {last}"}."""\n\n'
        f"{values}    _fields_ = (\n{kinds}    )\n"
    )


def _preprocessed(folders: Sequence[Path], headers: Sequence[str]) -> str:
    """Return the preprocessed text of the headers, without the headers of the C library."""
    texts = [path.read_text() for folder in folders for path in folder.glob("*.h")]
    plain = "".join(f"typedef int {name};\n" for name in (*SCALARS, "pthread_t") if name.endswith("_t"))
    unit = plain + "".join(f"struct opaque_{name};\ntypedef struct opaque_{name} {name};\n" for name in OPAQUE[:3])
    unit += "".join(f'#include "{name}"\n' for name in headers)
    with TemporaryDirectory() as stubs:
        for name in {name for text in texts for name in re.findall(r"#include <(.+)>", text)}:
            (Path(stubs) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(stubs) / name).touch()
        search = [f"-I{folder}" for folder in (stubs, *folders)]
        command = [*compiler_command(), "-E", "-nostdinc", *search, "-x", "c", "-"]
        result = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if result.returncode:
        raise StructError(f"headers must pass the preprocessor:\n{result.stderr}")
    return result.stdout


def main() -> None:
    for output in OUTPUTS:
        output.path.write_text(module_text(output))


if __name__ == "__main__":
    main()
