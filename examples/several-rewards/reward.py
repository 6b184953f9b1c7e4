"""One of the example's two rewards: it is called with one sample, and says beside its reward what it measured."""

from rljob_workers.rewards.base import Answer, Score


def brief(answer: Answer, /) -> Score:
    """1.0 for the tokens of the label and the end of the sequence, less for each that is missing or too many.

    It counts tokens: text leaves out those that are no characters, and a model learns to write them.
    """
    off = abs(len(answer.token_ids) - len(answer.label) - 1)
    return Score(1.0 / (1.0 + off), {"tokens_off": off, "cut_off": answer.finish_reason == "length"})
