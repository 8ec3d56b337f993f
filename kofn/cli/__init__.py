"""The `kofn` command, which takes arguments and prints text or JSON."""
