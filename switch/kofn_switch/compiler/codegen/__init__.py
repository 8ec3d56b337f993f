"""Generates C from a program."""
