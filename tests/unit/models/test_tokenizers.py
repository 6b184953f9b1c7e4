"""Made tokenizers lose nothing, have ids that depend on the config alone, and refuse with a sentence."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rljob_api.model_files.tokens import end_of_sequence, made_tokens, tokens_in
from rljob_api.spec.model import PRINTABLE_ASCII, ModelConfig, ModelSpec, TokenizerConfig, TokenizerKind, tokenizer_size
from rljob_workers.models.tokenizers import build_tokenizer, decode_tokens, encode_prompt, make_tokenizer, text_decoder

CHARACTER = make_tokenizer(TokenizerConfig())
BYTE = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))
DIGITS = make_tokenizer(TokenizerConfig(alphabet="0123456789="))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TokenizerConfig(), id="printable ASCII by default"),
        pytest.param(TokenizerConfig(alphabet="0123456789="), id="an alphabet of eleven"),
        pytest.param(TokenizerConfig(alphabet="äöü€漢"), id="an alphabet beyond ASCII"),
        pytest.param(TokenizerConfig(kind=TokenizerKind.BYTE), id="bytes"),
    ],
)
def test_the_size_known_without_building_is_the_size_of_the_tokenizer(config: TokenizerConfig) -> None:
    tokenizer = make_tokenizer(config)
    assert tokenizer_size(config) == len(tokenizer)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert {tokenizer.eos_token_id, tokenizer.pad_token_id} == {len(tokenizer) - 2, len(tokenizer) - 1}


@pytest.mark.parametrize("tokenizer", [CHARACTER, BYTE, DIGITS], ids=["characters", "bytes", "digits"])
def test_the_tokens_known_without_building_are_those_of_the_tokenizer_and_of_its_files(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    configs = (TokenizerConfig(), TokenizerConfig(kind=TokenizerKind.BYTE), TokenizerConfig(alphabet="0123456789="))
    (config,) = (one for one, made in zip(configs, (CHARACTER, BYTE, DIGITS), strict=True) if made is tokenizer)
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    assert made_tokens(config) == tokens
    tokenizer.save_pretrained(tmp_path)
    assert tokens_in(tmp_path) == tokens
    assert end_of_sequence(tmp_path) == tokenizer.eos_token


def test_the_tokens_of_a_unigram_table_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": [["<unk>", 0.0], ["a", -1.5]]}, "added_tokens": [{"id": 2, "content": "<s>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"3": {"content": "<|tool|>"}}}')
    assert tokens_in(tmp_path) == {0: "<unk>", 1: "a", 2: "<s>", 3: "<|tool|>"}
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokens_in(tmp_path) is None


@given(text=st.text(alphabet=PRINTABLE_ASCII, max_size=200))
@settings(deadline=None)
def test_characters_come_back_as_they_went_in(text: str) -> None:
    ids = CHARACTER.encode(text)
    assert CHARACTER.decode(ids) == text


@given(text=st.text(alphabet="0123456789=", max_size=50))
@settings(deadline=None)
def test_a_character_is_one_token_with_the_id_of_its_place(text: str) -> None:
    assert encode_prompt(DIGITS, text) == ["0123456789=".index(char) for char in text]


@given(text=st.text(max_size=200))
@settings(deadline=None)
def test_every_text_comes_back_from_bytes(text: str) -> None:
    ids = BYTE.encode(text)
    assert BYTE.decode(ids) == text
    if "<|" not in text:
        assert ids == list(text.encode())


def test_decoding_leaves_special_tokens_out_and_adds_no_space() -> None:
    ids = [*DIGITS.encode("12=21"), DIGITS.eos_token_id, DIGITS.pad_token_id]
    assert decode_tokens(DIGITS, ids) == "12=21"
    assert text_decoder(DIGITS, skip_special_tokens=True)([ids, ids[:2]]) == ["12=21", "12"]
    assert text_decoder(DIGITS, skip_special_tokens=False)([ids[4:]]) == ["1<|eos|><|pad|>"]


def test_an_unknown_character_is_named_with_prompt_and_alphabet() -> None:
    sentence = (
        "data: the character '+' of the prompt '1+1=' is not in the alphabet '0123456789=' of the tokenizer."
        " Add it to model.config.tokenizer.alphabet, or set model.config.tokenizer.kind to Byte."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        encode_prompt(DIGITS, "1+1=")


def test_chat_messages_need_no_character_beyond_their_own() -> None:
    messages = [{"role": "system", "content": "12"}, {"role": "user", "content": "3="}]
    assert encode_prompt(DIGITS, messages) == [1, 2, DIGITS.eos_token_id, 3, 10]


def test_chat_messages_without_a_template_are_refused() -> None:
    plain = make_tokenizer(TokenizerConfig(alphabet="ab"))
    plain.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        encode_prompt(plain, [{"role": "user", "content": "a"}])


def test_a_saved_tokenizer_is_the_same_after_loading(tmp_path: Path) -> None:
    DIGITS.save_pretrained(str(tmp_path))
    loaded = build_tokenizer(ModelSpec(config=ModelConfig(), tokenizer_path=str(tmp_path)))
    assert loaded.get_vocab() == DIGITS.get_vocab()
    assert encode_prompt(loaded, "123=") == encode_prompt(DIGITS, "123=")
    assert decode_tokens(loaded, loaded.encode("1 2".replace(" ", ""))) == "12"
    assert loaded.eos_token_id == DIGITS.eos_token_id
    assert loaded.chat_template == DIGITS.chat_template
    with pytest.raises(ValueError, match="the character 'x'"):
        encode_prompt(loaded, "x")


@pytest.mark.parametrize(
    ("field", "others"),
    [
        pytest.param("path", {}, id="model.path"),
        pytest.param("tokenizerPath", {"config": {}}, id="model.tokenizerPath"),
    ],
)
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, field: str, others: dict[str, object]) -> None:
    spec = ModelSpec.model_validate({field: str(tmp_path / "absent"), **others})
    with pytest.raises(ValueError, match=rf"model.{field}: .*absent is not a folder"):
        build_tokenizer(spec)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model.tokenizerPath: .* has no tokenizer"):
        build_tokenizer(ModelSpec(config=ModelConfig(), tokenizer_path=str(tmp_path)))
