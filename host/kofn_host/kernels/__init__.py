"""Arithmetic on whole arrays, in C."""
