"""Errors whose message is for the person at the terminal: what must hold, what was found, what to do.

KofnError
  ConfigError     a configuration that cannot be run
  ResultsError    files of a run that are missing or damaged        results.errors
  RunError        a run that cannot go on                           run.errors
"""


class KofnError(Exception):
    """Base of them all."""


class ConfigError(KofnError):
    """A configuration that cannot be run; the message names the field, what must hold and what was found."""
