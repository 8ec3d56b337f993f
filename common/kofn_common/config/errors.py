"""Errors whose message is for the person at the terminal: the rule, the value found, the remedy.

KofnError
  ConfigError     a configuration that cannot be run
  ResultsError    files of a run that are missing or damaged        results.errors
  RunError        a run that cannot go on                           run.errors
"""


class KofnError(Exception):
    """Base of all errors of kofn."""


class ConfigError(KofnError):
    """A configuration that cannot be run; the message names the field, the rule and the value found."""
