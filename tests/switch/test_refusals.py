"""A program with an unsupported construct is refused at loading, with its name and its place in the P4 source."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kofn_common.nativebuild.errors import CompileError, CompilerMissing
from kofn_switch.compiler.build import compile_program
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import ProgramError
from tests.switch.build import Tree, const, document, field, op, place

METER = {"name": "m", "rate_count": 2, "type": "bytes", "size": 4, "is_direct": False, "source_info": place(7)}
TYPES: dict[str, list[list[Any]]] = {"h_t": [["a", 32, False], ["b", 32, False]]}


def program(*primitives: Any, **sections: Any) -> bytes:
    return document(header_types=TYPES, headers={"h": "h_t"}, primitives=primitives, **sections)


def primitive(name: str, *arguments: Tree) -> dict[str, Any]:
    return {"op": name, "parameters": list(arguments), "source_info": place(31)}


def assigned(tree: Tree) -> dict[str, Any]:
    return primitive("assign", field("h", "a"), tree)


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    root = json.loads(program())
    change(root)
    return json.dumps(root).encode()


def state(root: dict[str, Any]) -> dict[str, Any]:
    (only,) = root["parsers"][0]["parse_states"]
    assert isinstance(only, dict)
    return only


def with_variable_field(root: dict[str, Any]) -> None:
    root["header_types"][1]["fields"].append(["v", "*"])
    root["header_types"][1].update(max_length=12)


ENTRY = {
    "match_key": [{"match_type": "exact", "key": "0x01"}],
    "action_entry": {"action_id": 0, "action_data": []},
}
MASKED = {"type": "parse_vset", "value": "v", "mask": "0x0f", "next_state": None}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (program(primitive("melt", const(1))), r"test\.p4:31: .*primitive melt is not executed"),
        (program(assigned(op("rotate", field("h", "a"), const(1)))), r"test\.p4:31: .*operator rotate"),
        (program(primitive("assign", field("h", "$valid$"), const(1))), r"31: .*an assignment to h\.\$valid\$ is not"),
        (program(assigned({"type": "melted", "value": ["u", "h", "f"]})), r"31: a value of kind melted"),
        (
            program(assigned(op(">>", op("<<", const(1), field("h", "a")), const(3)))),
            r"31: .*an intermediate result of unlimited size",
        ),
        (program(meter_arrays=[METER | {"rate_count": 3}]), r"test\.p4:7: .*meter m of 3 rates"),
        (program(meter_arrays=[METER | {"type": "bits"}]), r"test\.p4:7: .*meter m of type bits; packets or bytes"),
        (program(extern_instances=[{"name": "e", "source_info": place(8)}]), r"test\.p4:8: .*extern instance e"),
        (
            changed(lambda root: root["header_types"][1]["fields"].append(["w", 16392, False])),
            "16392 bits; at most 16384",
        ),
        (
            changed(lambda root: state(root).update(transition_key=[op("+", const(1), const(2))])),
            "select on an expression other than",
        ),
        (changed(lambda root: state(root)["transitions"].insert(0, MASKED)), "a select case of kind parse_vset"),
        (changed(with_variable_field), "extract of a header of type h_t without a length"),
        (
            changed(lambda root: root["pipelines"][0]["tables"][0].update(action_ids=[])),
            r"table .* uses action 0; its own are \[\]",
        ),
        (
            changed(lambda root: root["pipelines"][0]["tables"][0].update(entries=[ENTRY])),
            r"table .* has an entry with a key of \['exact'\]; its own is \[\]",
        ),
        (
            changed(lambda root: root["pipelines"][0]["tables"][0].update(max_size="many")),
            r"contradicts its format: TypeError\(\"Table.size is 'many'",
        ),
        (changed(lambda root: root["__meta__"].update(version=[3, 0])), "format 3"),
        (
            changed(lambda root: root["headers"][-1].update(name="psa_ingress_input_metadata", metadata=True)),
            "must be v1model's, got one of PSA",
        ),
        (
            changed(lambda root: root["headers"][-1].update(name="pna_main_input_metadata", metadata=True)),
            "must be v1model's, got one of PNA",
        ),
        (
            changed(lambda root: root.update(headers=[h for h in root["headers"] if h["name"] != "standard_metadata"])),
            "not PSA, PNA or another",
        ),
        (changed(lambda root: root.pop("actions")), "contradicts its format: KeyError"),
        (b"not JSON", "not p4c's BMv2 JSON"),
        (b"no JSON", "not p4c's BMv2 JSON: Expecting value: line 1 column 1"),
        (b"{}", "not p4c's BMv2 JSON: it has no pipelines"),
    ],
)
def test_unsupported_construct_is_refused(document: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        Engine({}).load(document)


def test_supported_constructs_load() -> None:
    Engine({}).load(program(assigned(op("+", field("h", "a"), const(1)))))


def test_string_may_have_any_bytes() -> None:
    """BMv2 reads any bytes in a source's name and in a log message."""
    document = changed(lambda root: root.update(program="here"))
    Engine({}).load(document.replace(b'"here"', b'"a\tb\x01 caf\xe9"'))


def test_output_of_older_compilers_loads() -> None:
    """Cases of a select lack their kind, and errors are numbered from 1."""
    root = json.loads(program(primitive("assign", field("h", "b"), field("standard_metadata", "parser_error"))))
    root["errors"] = [["NoError", 1], ["PacketTooShort", 2]]
    more = state(root) | {"name": "more", "id": 1, "transition_key": [], "transitions": []}
    cases: list[dict[str, Any]] = [
        {"value": "0x00000007", "next_state": None},
        {"value": "default", "next_state": "more"},
    ]
    state(root).update(transition_key=[field("h", "a")], transitions=[case | {"mask": None} for case in cases])
    root["parsers"][0]["parse_states"].append(more)
    engine = Engine({})
    engine.load(json.dumps(root).encode())
    assert engine.inject(1, b"\0\0\0\7" + bytes(12)) == [(0, b"\0\0\0\7\0\0\0\1" + bytes(8))]
    assert engine.inject(1, bytes(16)) == [(0, b"\0\0\0\0\0\0\0\1")], "the header must be extracted twice"
    assert engine.inject(1, bytes(8)) == [(0, b"\0\0\0\0\0\0\0\2")]


def test_drop_works_without_metadata() -> None:
    """Older compilers wrote this primitive for mark_to_drop."""
    engine = Engine({})
    engine.load(program(primitive("drop")))
    assert engine.inject(1, bytes(8)) == []
    assert engine.stats().drops["ingress"] == 1


def test_missing_compiler_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerMissing, match=r"no-such-compiler.*apt install gcc"):
        compile_program("int x;")


def test_unusable_cache_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KOFN_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        OSError, match=f"^{re.escape(str(tmp_path))}/file, where compiled .*: File exists; KOFN_CACHE names another$"
    ):
        compile_program("int x;")


def test_cache_is_used_after_compilation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KOFN_CACHE", str(tmp_path))
    first = compile_program("int answer = 42;")
    stamp = first.stat().st_mtime_ns
    assert compile_program("int answer = 42;") == first
    assert first.stat().st_mtime_ns == stamp
    assert compile_program("int answer = 43;") != first
    with pytest.raises(CompileError, match="error"):
        compile_program("no C")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".so", ".so"], "no unfinished file may be left"


def test_cache_keeps_the_most_recently_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KOFN_CACHE", str(tmp_path))
    monkeypatch.setenv("KOFN_KEEP_C", "1")
    monkeypatch.setattr("kofn_common.nativebuild.library.KEPT", 2)
    first, second = compile_program("int x = 1;"), compile_program("int x = 2;")
    compile_program("int x = 1;")
    third = compile_program("int x = 3;")
    assert set(tmp_path.glob("*.so")) == {first, third}
    assert not list(tmp_path.glob(f"{second.stem}.*")), "the C text must be removed with the library"
