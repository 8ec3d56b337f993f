"""The codecs that ship; compression/codec.py has what a codec is."""
