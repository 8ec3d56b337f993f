"""Many runs that answer one question: is k right, what does compression cost, who is faster, what survives faults."""
