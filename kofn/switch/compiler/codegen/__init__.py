"""A program to C."""
