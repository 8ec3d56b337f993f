"""The executable reference: a slow interpreter of the same model that the compiler reads, meant to be obviously right.

What a program means is written here as plainly as possible: integers of any size, lists, dictionaries, one packet at a
time.  It shares nothing with the code generator but the model and the control plane's view of entries.
"""

from switch.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
