"""The control plane's state of a program: entries, profiles, value sets, meters."""
