"""The controller's access to the switch: program, table entries, slots."""
