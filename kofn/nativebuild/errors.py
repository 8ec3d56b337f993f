"""Why C text did not become a library.

BuildError
  CompilerMissing    there is no C compiler
  CompileError       the C compiler refused the text (a fault of whoever wrote it)
"""


class BuildError(Exception):
    """Base of the errors of this package."""


class CompilerMissing(BuildError):  # noqa: N818 - says what happened
    """No C compiler was found; the message says what to install."""


class CompileError(BuildError):
    """The C compiler refused the text; the message holds its output."""
