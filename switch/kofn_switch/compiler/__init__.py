"""Compiles p4c's BMv2 JSON to native code.

JSON --reader/--> Program (ir/) --codegen/--> C --build.py--> library

analysis/ finds properties of a program before it runs.
"""
