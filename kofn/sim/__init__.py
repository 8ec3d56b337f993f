"""A run in virtual time: the same estimator, policy, protocol core, ledger and model, and a clock that jumps."""
