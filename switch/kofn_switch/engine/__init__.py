"""The running switch: its program, ports and packets."""
