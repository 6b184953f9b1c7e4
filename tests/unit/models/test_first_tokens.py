"""The first tokens of a long text: those of the whole text, and read from its beginning alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from rljob_api.spec.model import TokenizerConfig
from rljob_workers.models.first_tokens import CHARACTERS_PER_TOKEN, LEAST_CHARACTERS, MORE_READ, first_tokens
from rljob_workers.models.tokenizers import TokenizerText, make_tokenizer

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
FRAGMENTS = (
    "def f(x):\n",
    "    return",
    "  \n",
    "\n\n",
    "he's",
    "é",
    "!!!",
    "123",
    "9" * 40,
    " ",
    "\t",
    "日本",
    "a" * 50,
    "<end>",
)


def _trained(pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["".join(FRAGMENTS) * 3, "return he's 1234 !!! aaaa"], trainer)
    return tokenizer


GPT2 = _trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
QWENS = _trained(
    pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
)
_DOUBLED = ["a" * (1 << power) for power in range(7)]
LONG = Tokenizer(
    BPE(
        vocab={text: number for number, text in enumerate([*_DOUBLED, " "])},
        merges=[(text, text) for text in _DOUBLED[:-1]],
    )
)
LONG.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
"""A tokenizer with tokens of 64 characters."""
CHARACTERS = make_tokenizer(TokenizerConfig(kind="Character", alphabet="0123456789=>?")).backend_tokenizer


@pytest.mark.parametrize("tokenizer", [GPT2, QWENS], ids=["the expression of GPT-2", "that of Qwen"])
@given(
    parts=st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.integers(1, 60)), min_size=1, max_size=12),
    most=st.integers(0, 600),
    before=st.integers(0, 5000),
)
@settings(max_examples=60, deadline=None)
def test_they_are_those_of_the_whole_text(
    tokenizer: Tokenizer, parts: list[tuple[str, int]], most: int, before: int
) -> None:
    text = "ab " * (before // 3) + "".join(part * count for part, count in parts)
    whole = tokenizer.encode(text, add_special_tokens=False)
    found = first_tokens(tokenizer, text, most)
    assert found.token_ids == whole.ids[:most]
    end = whole.offsets[min(most, len(whole.ids)) - 1][1] if most else 0
    assert found.characters_left == (0 if most >= len(whole.ids) else len(text) - end)


def test_of_a_megabyte_no_more_is_read_than_a_few_times_what_is_wanted() -> None:
    class Counts:
        """A tokenizer that counts the characters that it reads."""

        def __init__(self) -> None:
            self.read = 0

        def encode(self, text: str, *, add_special_tokens: bool) -> object:
            self.read += len(text)
            return CHARACTERS.encode(text, add_special_tokens=add_special_tokens)

    counts = Counts()
    found = first_tokens(counts, "1" * 1_000_000, 1000)  # type: ignore[arg-type]
    assert (found.token_ids, found.characters_left) == ([1] * 1000, 999_000)
    assert counts.read == CHARACTERS_PER_TOKEN * 1000


@pytest.mark.parametrize(
    "text", ["\t" * 1_000_000, "ab" * 500_000], ids=["a run of white space", "one piece of letters"]
)
def test_a_piece_that_never_ends_is_read_in_part_too(text: str) -> None:
    found = first_tokens(GPT2, text, 10)
    assert len(found.token_ids) == 10
    assert found.token_ids == GPT2.encode(text[: MORE_READ * LEAST_CHARACTERS], add_special_tokens=False).ids[:10]
    assert found.characters_left > 999_000


@pytest.mark.parametrize(
    ("piece", "most"),
    [("a" * 64, 1000), ("a" * 64 + " ", 2000), ("a" * 64, 6250), ("a" * 64, 7000)],
    ids=["of one piece", "of words", "as many as there are", "more than there are"],
)
def test_tokens_of_many_characters_are_as_many_as_there_is_room_for(piece: str, most: int) -> None:
    text = piece * 6250
    found, whole = first_tokens(LONG, text, most), LONG.encode(text, add_special_tokens=False)
    assert found.token_ids == whole.ids[:most]
    end = whole.offsets[min(most, len(whole.ids)) - 1][1]
    assert found.characters_left == len(text) - end


@pytest.mark.parametrize(
    ("text", "most", "tokens", "left"),
    [("", 5, [], 0), ("12", 5, [1, 2], 0), ("12", 2, [1, 2], 0), ("123", 2, [1, 2], 1), ("123", 0, [], 3)],
    ids=["an empty text", "a short one", "one that just fits", "one that does not", "no room at all"],
)
def test_short_texts(text: str, most: int, tokens: list[int], left: int) -> None:
    found = first_tokens(CHARACTERS, text, most)
    assert (found.token_ids, found.characters_left) == (tokens, left)


def test_what_a_function_sets_at_its_tokenizer_does_not_cut_what_tools_write() -> None:
    tokenizer = make_tokenizer(TokenizerConfig(kind="Character", alphabet="0123456789"))
    text = TokenizerText(tokenizer, 12)
    tokenizer("123456", truncation=True, max_length=2)
    assert text.encode("123456", 10).token_ids == [1, 2, 3, 4, 5, 6]
    assert text.encode(f"1{tokenizer.eos_token}2", 10).token_ids == tokenizer.encode(f"1{tokenizer.eos_token}2")


def test_an_unknown_character_is_named() -> None:
    text = TokenizerText(make_tokenizer(TokenizerConfig(kind="Character", alphabet="0123456789")), 12)
    with pytest.raises(ValueError, match=r"^the character 'x' of '12x' is not in the alphabet '0123456789'"):
        text.encode("12x", 10)
