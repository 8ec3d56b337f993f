"""Random frames, P4Runtime messages and programs, in search of crashes and undefined behaviour.

    python -m tests.switch.fuzz --seconds 600

runs all parts (`frames`, `messages`, `documents`) with the switch's native code built with AddressSanitizer and
UndefinedBehaviorSanitizer. The programs are those of the packet suite and kofn's own.
"""
