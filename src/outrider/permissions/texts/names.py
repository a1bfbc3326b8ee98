"""Long lists of names, written as one text."""


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())
