"""The objectives, each in a file of its name; controller/policy/objective.py defines what one consists of."""
