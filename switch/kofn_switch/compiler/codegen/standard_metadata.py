"""v1model's standard_metadata in C, with the fields that a program has."""

from kofn_switch.compiler.codegen.layout import META, Layout
from kofn_switch.compiler.codegen.liveness import mentioned


class StandardMetadata:
    """The standard metadata of one program."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._mentioned = layout, mentioned(layout.program)

    def field(self, field: str) -> str:
        """Return a field that v1model's standard_metadata always has, or "0" if the program lacks it."""
        return self._layout.meta(field) or "0"

    def timestamps(self, source: str, *fields: str) -> list[str]:
        """Set each of the fields that the program reads to the C expression `source`, in microseconds."""
        wanted = [field for field in fields if self.mentions(field)]
        if not wanted:
            return []
        return [
            f"const uint64_t now = services(D->core)->{source};",
            *[line for field in wanted for line in self._layout.set_meta(field, "now")],
        ]

    def mentions(self, field: str) -> bool:
        """Return whether the program mentions a field of standard_metadata. A clock that the program does not use is
        not read, because reading a clock costs as much as a table."""
        return (META, field) in self._mentioned
