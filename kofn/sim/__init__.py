"""A run in virtual time: the same estimator, policy, protocol core, ledger and model, with a clock that jumps."""
