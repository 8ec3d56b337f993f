"""`kofn simulate --scale`: iteration by iteration, vectorised over workers and seeds, without packets or gradients."""
