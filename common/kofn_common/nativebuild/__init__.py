"""C text to shared libraries, compiled once and kept in a cache."""
