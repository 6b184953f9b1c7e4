"""`rljob validate` of the sets of an evaluation: prompts that are too long, and what is probably not meant."""

import json
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from tokenizers import Tokenizer, models, pre_tokenizers

from rljob_api.spec.data import DataSpec
from rljob_cli.checks.evaluation_sets import most_tokens
from rljob_cli.main import cli
from tests.unit.api.manifests import changed

POSITIONS = 16


def lines(folder: Path, name: str, *prompts: Any) -> dict[str, Any]:
    """A set of the file that is written so."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": one, "label": "1"}) + "\n" for one in prompts))
    return {"name": name, "data": {"prompts": f"{name}.jsonl"}}


def splitting_model(folder: Path, positions: int = POSITIONS) -> None:
    """A model's folder, without weights, whose tokenizer has a token for each word."""
    model = folder / "model"
    model.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": positions, "vocab_size": 6}
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").write_text("")
    tokenizer = Tokenizer(models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(model / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[UNK]"}
    (model / "tokenizer_config.json").write_text(json.dumps(described))


def test_tokens_are_counted_where_bytes_rule_nothing_out(tmp_path: Path) -> None:
    splitting_model(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "word", "label": "1"}\n')
    sets = [
        lines(tmp_path, "short", "word"),
        lines(tmp_path, "many-bytes", "word " * (POSITIONS - 1)),
        lines(tmp_path, "too-long", "word", "word " * POSITIONS, "word " * (POSITIONS + 3)),
    ]
    manifest = changed({"spec.model": {"path": "model"}, "spec.evaluation": {"sets": sets, "everySteps": 1}})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    done = CliRunner().invoke(cli, ["validate", str(tmp_path / "job.yaml"), "--output", "json"])
    assert done.exit_code == 64, done.output
    (found,) = json.loads(done.stdout)["problems"]
    place, _, sentence = found.replace(f"{tmp_path}/", "").partition(": ")
    assert place.startswith("job.yaml:")
    assert sentence == (
        "spec.evaluation.sets[2].data: 2 of 3 prompts have more than 15 tokens, and so leave no room for an answer in"
        " the model's 16 positions; the longest, line 3 of too-long.jsonl, has 19. Leave them out: no sample of a set"
        " is passed over."
    )


def test_a_chat_may_have_what_its_template_adds(tmp_path: Path) -> None:
    lines(tmp_path, "texts", "word word", "é")
    lines(tmp_path, "chats", [{"role": "user", "content": "word"}])
    texts, chats = (DataSpec(prompts=str(tmp_path / f"{name}.jsonl")) for name in ("texts", "chats"))
    assert most_tokens(texts) == 9
    assert most_tokens(chats) > 1024
    wrapped = texts.model_copy(update={"apply_chat_template": True, "system_prompt": "s" * 5000})
    assert most_tokens(wrapped) > 6024


def test_a_set_has_its_own_warnings_and_none_about_what_training_does_with_long_prompts(tmp_path: Path) -> None:
    splitting_model(tmp_path, positions=4096)
    template = {"chat_template": "{{ messages[0].role }} {{ messages[0].content }}"}
    described = tmp_path / "model/tokenizer_config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | template))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [{"role": "user", "content": "word"}], "label": "1"}\n')
    sets = [
        lines(tmp_path, "texts", "word", "word"),
        lines(tmp_path, "chats", [{"role": "user", "content": "word " * 8}]),
    ]
    limits = {"spec.rollout.maxPromptTokens": 2, "spec.rollout.longPrompts": "Refuse"}
    evaluation = {"sets": sets, "everySteps": 1}
    found = validated(tmp_path, changed({"spec.model": {"path": "model"}, "spec.evaluation": evaluation, **limits}))
    of_sets = [text for text in found["warnings"] if "spec.evaluation" in text]
    assert found["problems"] == []
    assert [text.partition(": ")[2].replace(f"{tmp_path}/", "") for text in of_sets] == [
        "spec.evaluation.sets[0].data.prompts: set texts: 1 of 2 prompts are there more than once (line 2 has that of"
        " line 1), so that they count more than others. Remove them where that is not meant.",
        "spec.evaluation.sets[0].data.applyChatTemplate: set texts: the tokenizer in model has a chat template, but 2"
        " of 2 prompts are texts, which the model gets as they are. Set it to true for a model that was trained on"
        " conversations, or to false where that is meant.",
    ]


def test_a_set_that_takes_the_template_of_training_has_no_warning_about_it(tmp_path: Path) -> None:
    """Its keys are those of training, too; a file that lacks them is a problem of the set."""
    (tmp_path / "prompts.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    (tmp_path / "other.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n')
    (tmp_path / "chat.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    data = {"promptKey": "question", "labelKey": "answer", "applyChatTemplate": True, "systemPrompt": "s"}
    changes = {f"spec.data.{name}": value for name, value in data.items()}
    changes |= {"spec.data.chatTemplate": {"file": "chat.jinja"}, "spec.model.config.tokenizer": {"kind": "Byte"}}
    changes |= {"spec.model.config.maxPositionEmbeddings": 4096}
    sets = [{"name": name, "data": {"prompts": f"{name}.jsonl"}} for name in ("prompts", "other")]
    found = validated(tmp_path, changed({**changes, "spec.evaluation": {"sets": sets, "everySteps": 1}}))
    assert [text.partition(": ")[2].replace(f"{tmp_path}/", "") for text in found["problems"]] == [
        "spec.evaluation.sets[1].data.prompts: other.jsonl line 1: has no key 'question'. Add it or set data.promptKey."
    ]
    assert not [text for text in found["warnings"] if "sets[0]" in text]


def validated(folder: Path, manifest: dict[str, Any]) -> dict[str, list[str]]:
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    done = CliRunner().invoke(cli, ["validate", str(folder / "job.yaml"), "--static", "--output", "json"])
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found
