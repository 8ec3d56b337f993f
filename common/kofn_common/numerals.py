"""Whole numbers in text that another program or a person has written."""

DIGITS = 18


def is_numeral(text: str) -> bool:
    """Return whether a text is a whole number from 0 on, of at most 18 digits 0 to 9. int() takes other digits,
    too, and raises ValueError for thousands of them.

    >>> [is_numeral(text) for text in ("0", "42", "", "-1", "\uff12", "9" * 5000)]
    [True, True, False, False, False, False]
    """
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS
