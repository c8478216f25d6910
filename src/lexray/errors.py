"""The one exception that users see."""

from lexray.clean import clean


class LexrayError(Exception):
    """Says what was asked, what is there, and what to try; names from files print as they look."""

    def __str__(self) -> str:
        return clean(super().__str__())
