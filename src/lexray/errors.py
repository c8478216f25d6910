"""The one exception that users see."""


class LexrayError(Exception):
    """Says what was asked, what is there, and what to try."""
