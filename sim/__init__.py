"""A run in virtual time: the same estimator, policy, protocol core, books and model, and a clock that jumps."""
