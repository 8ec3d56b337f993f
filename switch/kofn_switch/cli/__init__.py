"""The command line of `kofn-switch`."""
