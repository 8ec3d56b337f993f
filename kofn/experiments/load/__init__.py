"""A switch under load: workers in C behind its ports, in a network namespace of its own."""
