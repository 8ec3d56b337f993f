"""The built-in objectives, each in a file of its name; controller/policy/objective.py defines the type."""
