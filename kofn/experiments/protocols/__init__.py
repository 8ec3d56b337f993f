"""`kofn experiment protocols`: protocols for sums in the network, under loss, a slow worker, few slots, a death."""
