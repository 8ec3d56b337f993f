"""`kofn doctor`: every check from the machine to the sums that workers get."""
