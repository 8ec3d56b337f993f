"""`kofn experiment codecs`: the cost of compression in iterations, and its gain when a link slows down."""
