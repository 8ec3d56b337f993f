"""Arithmetic on whole arrays, in C where it can be compiled."""
