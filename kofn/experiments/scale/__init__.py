"""`kofn experiment scale`: sweeps of simulations by iterations, up to hundreds of thousands of workers."""
