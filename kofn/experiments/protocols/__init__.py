"""`kofn experiment protocols`: protocols that sum in the network, under loss, a slow worker, few slots, a death."""
