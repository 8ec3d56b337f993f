"""What must not happen, looked for by chance: frames, P4Runtime messages and programs that nobody would write.

    python -m tests.switch.fuzz --seconds 600

runs all parts (`frames`, `messages`, `documents`) with the switch's native code built with AddressSanitizer and
UndefinedBehaviorSanitizer.  Programs are those of the packet suite and kofn's own.
"""
