"""The `kofn` command: arguments in, text or JSON out."""
