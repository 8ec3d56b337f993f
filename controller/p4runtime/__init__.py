"""The switch as the controller sees it: program, entries, slots."""
