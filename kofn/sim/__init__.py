"""A run in virtual time: the estimator, policy, protocol core, ledger and model of a run, with a clock that jumps."""
