"""The built-in codecs; compression/codec.py has the interface."""
