"""The switch's errors, as one tree, named for their causes.

SwitchError
  ProgramError       the program holds a construct that the switch does not execute, or contradicts itself
  NoProgram          the operation needs a loaded program
  OtherSwitch        the PATH has another switch under BMv2's name
  PortError          an interface cannot be opened
  PcapError          a pcap file cannot be read
  FaultError         a rule for injected faults cannot be followed
  InvalidEntry       an entry, action or value does not fit the program
    UnknownObject    no table, action, counter, register, ... of that name
  EntryExists        the key is already in the table
  EntryNotFound      the key (or group) is not there
  StillUsed          an entry or group still refers to the member or group to be removed
  TableFull          the table holds as many entries as the program declares
"""


class SwitchError(Exception):
    """Base of all errors of the switch; the message names the object, the rule and the value found."""


class ProgramError(SwitchError):
    """The program cannot be executed; the message names the construct and its place in the P4 source."""


class NoProgram(SwitchError):  # noqa: N818 - names the cause
    """No program is loaded."""


class OtherSwitch(SwitchError):  # noqa: N818 - names the cause
    """The program that has BMv2's name on the PATH is not BMv2."""


class PortError(SwitchError):
    """A port's interface cannot be opened."""


class PcapError(SwitchError):
    """A pcap file that stands for an interface is missing, damaged, or of another format."""


class FaultError(SwitchError):
    """A rule for injected faults is unknown, out of bounds, or does nothing."""


class InvalidEntry(SwitchError):  # noqa: N818 - names the cause
    """An entry, action or value does not fit the program; the message names the field and the rule."""


class UnknownObject(InvalidEntry):
    """The program has no object of that name; the message lists the existing objects."""


class EntryExists(SwitchError):  # noqa: N818 - names the cause
    """The table has an entry with that key (and priority)."""


class EntryNotFound(SwitchError):  # noqa: N818 - names the cause
    """The table has no entry with that key (and priority), or there is no such group."""


class StillUsed(SwitchError):  # noqa: N818 - names the cause
    """A group or an entry refers to the member or group of an action profile."""


class TableFull(SwitchError):  # noqa: N818 - names the cause
    """The table holds as many entries as the program declares."""
