"""Properties of a program that are known before it runs."""
