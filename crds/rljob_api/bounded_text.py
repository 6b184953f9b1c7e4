"""Texts of a bounded length, of what may have any. Called by whoever keeps or shows what a process or a model says."""


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, of which the last three are dots where the text goes on."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def without_middle(text: str, limit: int, hint: str = "") -> str:
    """A text of more than `limit` characters without those in its middle, and how many they are; `hint` says more."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out{hint}]\n{text[-half:]}"
