"""Pieces of generated C: a unit collects functions and constants, a block the statements of one function."""

from collections.abc import Iterator
from contextlib import contextmanager


class CodeUnit:
    """One generated C file."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self._kernels: dict[str, str] = {}
        self._constants: dict[tuple[int, ...], str] = {}

    def constant(self, words: tuple[int, ...]) -> str:
        """Return the name of an array of 64-bit words."""
        return self._constants.setdefault(words, f"constant_{len(self._constants)}")

    def kernel(self, signature: str, body: str) -> str:
        """Return the name of a function with that text; equal texts share one function."""
        return self._kernels.setdefault(f"{signature} {body}", f"kernel_{len(self._kernels)}")

    def helpers(self) -> list[str]:
        """Return the definitions of all constants and kernels."""
        lines = []
        for words, name in self._constants.items():
            values = ", ".join(f"0x{word:x}u" for word in words)
            lines.append(f"static const uint64_t {name}[{len(words)}] = {{{values}}};")
        for text, name in self._kernels.items():
            lines.append(f"static __attribute__((noinline)) void {name}{text}")
        return lines


class Block:
    """The statements of one function, indented, with names for its temporaries."""

    def __init__(self, unit: CodeUnit) -> None:
        self.unit = unit
        self.lines: list[str] = []
        self._depth = 1
        self._names = 0

    def add(self, *lines: str) -> None:
        self.lines += [f"{'    ' * self._depth}{line}" for line in lines]

    def name(self, prefix: str = "t") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    @contextmanager
    def braces(self, head: str = "") -> Iterator[None]:
        """Put the statements that are added inside between braces after `head`."""
        self.add(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.add("}")
