"""`kofn doctor`: checks from the machine to the sums that workers get."""
