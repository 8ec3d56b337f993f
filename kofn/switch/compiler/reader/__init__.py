"""p4c's BMv2 JSON to a program."""
