"""Errors of compiling C text to a library.

BuildError
  CompilerMissing    there is no C compiler
  CompileError       the C compiler refused the text (a fault of the text's author)
"""


class BuildError(Exception):
    """Base of the errors of this package."""


class CompilerMissing(BuildError):  # noqa: N818 - names the cause
    """No C compiler was found; the message names packages to install."""


class CompileError(BuildError):
    """The C compiler refused the text; the message holds its output."""
