"""Generated ctypes classes have the compiler's layout; a declaration that is not understood is an error.

tests/test_generated.py compares the committed ones.
"""

from pathlib import Path
from typing import Any

import pytest

from kofn_common.nativebuild import struct_text
from kofn_common.nativebuild.struct_text import Output, StructError
from tests.common.nativebuild.struct_layout import classes_of, compiled_layout, python_layout


def generated(folder: Path, header: str, structs: dict[str, str]) -> tuple[Output, dict[str, Any]]:
    """Return the output for a header's structs, and the generated module's names."""
    (folder / "x.h").write_text(header)
    output = Output(path=folder / "x.py", folders=[folder], headers=["x.h"], structs=structs)
    names: dict[str, Any] = {}
    exec(struct_text.module_text(output), names)
    return output, names


HEADER = """#pragma once
#include <stdint.h>
#define N 3
#define FIELDS(FIELD) FIELD(uint8_t, a) FIELD(int16_t, b)
enum { ROWS = N + 1, COLUMNS = 2 * ROWS - 1, NEXT };
enum plain { ZERO, ONE };
enum sign { MINUS = -1, PLUS = 1 };
struct other;
struct inner { char text[N]; double x, *y; };
struct whole {
#define MEMBER(type, name) type name;
    FIELDS(MEMBER)
    uint16_t table[ROWS][COLUMNS];
    struct inner one, two[NEXT];
    const struct other *other;
    int (*call)(struct other *other, int64_t x);
    enum plain plain;
    enum sign sign;
    float small;
    unsigned int count;
    int64_t rest[];
};
static inline int twice(int x) { return 2 * x; }
"""


def test_arrays_pointers_enums_and_constants_are_understood(tmp_path: Path) -> None:
    output, names = generated(tmp_path, HEADER, {"whole": ""})
    classes = classes_of(names, output)
    assert [*classes] == ["inner", "whole"]
    assert compiled_layout(tmp_path, output, classes) == python_layout(output, classes)
    table = names["Whole"]().table
    assert (len(table), len(table[0]), len(names["Whole"]().two)) == (4, 7, 8)


def test_struct_may_end_at_its_last_wanted_field(tmp_path: Path) -> None:
    _, names = generated(tmp_path, HEADER, {"whole": "table"})
    assert [name for name, _ in names["Whole"]._fields_] == ["a", "b", "table"]
    assert "Inner" not in names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct x { int a : 3; };", "struct x: a must have neither a width in bits"),
        ("struct x { _Alignas(16) int a; };", "struct x: a must have neither a width in bits nor an alignment"),
        ("struct x { union { int a; float b; } c; };", "struct x: c must have a type with a known size"),
        ("struct x { struct { int a; }; };", "must be a field with a name"),
        ("struct x { struct y a; };", "struct x: a must have a type with a known size, found Struct y"),
        ("struct x { long a; };", "struct x: a must have a type with a known size, found IdentifierType long"),
        ("struct x { _Atomic int a; };", "struct x: a must be a number"),
        ("struct x { int a[sizeof(int)]; };", "struct x: a must consist of numbers and"),
        ("struct x { int a; } __attribute__((packed));", "plain C"),
        ("#pragma pack(1)\nstruct x { int a; };", "no pragma except `once`, found pack"),
        ("struct x;", "struct x must be declared completely"),
        ("struct x { int class; };", "a name that Python can use"),
        ("#error no\nstruct x { int a; };", "pass the preprocessor"),
    ],
)
def test_declaration_that_is_not_understood_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(StructError, match=message):
        generated(tmp_path, text, {"x": ""})


def test_missing_last_field_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StructError, match="struct x must have a field b, found a"):
        generated(tmp_path, "struct x { int a; };", {"x": "b"})
