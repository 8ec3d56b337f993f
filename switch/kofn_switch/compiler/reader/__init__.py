"""Reads p4c's BMv2 JSON into a program."""
