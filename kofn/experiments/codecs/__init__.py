"""`kofn experiment codecs`: what compression costs in iterations, and what it is worth where a link slows down."""
