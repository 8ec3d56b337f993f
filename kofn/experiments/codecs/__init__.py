"""`kofn experiment codecs`: the cost of compression in iterations, and its gain where a link slows down."""
