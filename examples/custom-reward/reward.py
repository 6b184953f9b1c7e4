"""A reward of one's own: it is called with all samples of one prompt and returns one float for each."""

from collections.abc import Sequence

from rljob_workers.rewards.base import Answer


def share_of_letters_in_place(answers: Sequence[Answer], /) -> list[float]:
    """1.0 for the letters of the prompt in order; less for each that is out of place, missing or too many."""
    return [_score(answer.prompt.removesuffix(">"), answer.response) for answer in answers]


def _score(letters: str, response: str) -> float:
    right = "".join(sorted(letters))
    in_place = sum(given == expected for given, expected in zip(response, right, strict=False))
    return in_place / max(len(right), len(response))
