"""Many runs for one question: the choice of k, the cost of compression, a comparison, survival under faults."""
