"""`rljob validate` refuses sets of an evaluation with prompts that are too long, by the job's own tokenizer."""

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


def splitting_model(folder: Path) -> None:
    """A model's folder, without weights, whose tokenizer has a token for each word."""
    model = folder / "model"
    model.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": POSITIONS, "vocab_size": 6}
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
