"""A switch under load: workers in C behind its ports, in a separate network namespace."""
