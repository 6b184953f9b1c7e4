"""Checks of a job's prompts without a tokenizer's library, in one pass over their file.

Every line is checked; problems of single lines are listed for the first few and counted for the rest. Lengths are exact
where each character or byte is a token; else a prompt is assumed to have a token for every three characters, which text
in most languages stays below.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from rljob_api.model_files.hub_names import is_hub_name
from rljob_api.row_files.conversations import TOOLS, read_prompt, read_tools, spoken_text, whole_text
from rljob_api.row_files.labels import label_problem
from rljob_api.row_files.tables import NoReader, is_table, open_table
from rljob_api.spec import RLJobSpec
from rljob_api.spec.data import MAX_SOURCE_CHARACTERS, PromptFile
from rljob_api.spec.model import ModelSpec, TokenizerKind, alphabet_of
from rljob_api.spec.rollout import WITHOUT_LABELS, LongPrompts
from rljob_api.text_encoding import is_utf_16
from rljob_cli.checks.findings import Finding, independent, problem, unchecked, warning
from rljob_cli.checks.models import has_chat_template, json_object, max_positions, parsed
from rljob_cli.checks.named_folders import hub_hint

CHARACTERS_PER_TOKEN = 3
"""Text has rarely more characters for a token than this, and mostly not fewer."""


def prompts_of(file: PromptFile) -> Iterator[Any]:
    """Prompts of a file that was checked before."""
    path = Path(file.path)
    if is_table(path):
        table = open_table(path, f"spec.{file.field}")
        yield from (table.row(index)[file.prompt_key] for index in range(len(table)))
        return
    with path.open("rb") as lines:
        yield from (parsed(line)[file.prompt_key] for line in lines if line.strip())


def conversation_text(prompt: Any) -> str:  # noqa: ANN401 - JSON, which was checked before
    """All that the messages of a conversation say, calls of tools included; its template adds some tokens."""
    return whole_text(read_prompt(prompt))


_SHOWN_LINES = 5
"""Problems of single lines that are listed; a file with a wrong key has one in every line."""


_SHOWN_KEYS = 8


_LABEL_IS_MISSING = "which the reward compares with"


_PROMPTS, _SOURCES, _KEY, _MODEL = "spec.data.prompts", "spec.data.sources", "spec.data.promptKey", "spec.model"


_LABEL = ("spec.data.labelKey", "spec.rollout.reward")
"""Fields that sentences depend on."""


_FORMATS = (
    (b"ARROW1", "is a single Arrow file. Give the folder that datasets.save_to_disk wrote, Parquet, or JSONL."),
    (b"\x1f\x8b", "is compressed with gzip. Give it unpacked: gunzip --keep FILE."),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd. Give it unpacked: unzstd FILE."),
    (b"PK\x03\x04", "is a ZIP archive. Give the JSONL file that is in it."),
)
"""How a file begins that is neither JSONL nor Parquet, and what to do."""


@dataclass(slots=True)
class _Seen:
    """Counts of one pass over the file."""

    unit: str
    """The name of a row: `line` or `row`."""
    rows: int = 0
    with_label: int = 0
    keys: dict[str, None] = field(default_factory=dict)
    """Keys of the first rows, in their order."""
    texts: int = 0
    """Prompts that are one text and no conversation."""
    first_line: dict[bytes, int] = field(default_factory=dict)
    """Digest of a prompt -> the line that has it first."""
    blank: int = 0
    """Prompts with nothing but white space."""
    repeated: int = 0
    example: tuple[int, int] | None = None
    """Lines of the first prompt that is there twice."""
    too_long: int = 0
    longest: tuple[int, int] = (0, 0)
    """Tokens of the longest prompt, and its line."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """The longest prompt that is generated for."""

    tokens: int
    field: str
    is_exact: bool
    """Whether a character, or a byte, is a token."""
    by_bytes: bool
    system: str
    """The system's message before every prompt."""

    def length(self, text: str) -> int:
        """In tokens, as far as it is known here; a template adds some."""
        text = self.system + text
        if self.is_exact:
            return len(text.encode()) if self.by_bytes else len(text)
        return -(-len(text) // CHARACTERS_PER_TOKEN)


def prompt_findings(spec: RLJobSpec, *, is_elsewhere: bool, refused: Collection[str] = ()) -> list[Finding]:
    """Findings about the prompts of a job with absolute paths; none where it names no file.

    `refused`: paths of refused fields. Rows that are wrong by these are not among the few that are reported.
    """
    return [
        finding
        for file in spec.data.files
        if not is_hub_name(file.path)  # which the cache has not: said for all fields together
        for finding in _file_findings(file, spec, is_elsewhere=is_elsewhere, refused=refused)
    ]


def _file_findings(file: PromptFile, spec: RLJobSpec, *, is_elsewhere: bool, refused: Collection[str]) -> list[Finding]:
    path, field = Path(file.path), f"spec.{file.field}"
    if is_elsewhere and not path.exists():
        return [unchecked(f"{field}: {path} is not on this machine, so that no row of it was looked at.")]
    seen = _Seen("row" if is_table(path) else "line")
    try:
        wrong = None if is_table(path) else _format_problem(path)
        if wrong is not None:
            return [problem(f"{field}: {path} {wrong.replace('FILE', str(path))}")]
        found = independent(_row_problems(file, spec, seen), refused)
        first = list(islice(found, _SHOWN_LINES))
        more = sum(1 for _ in found)
    except OSError as error:
        return [
            problem(
                f"{field}: {path} cannot be read ({error.strerror}). Give the path of a JSONL or Parquet file."
                + hub_hint(path, "/FILE")
            )
        ]
    except NoReader as error:
        return [unchecked(str(error))]
    except ValueError as error:
        return [problem(str(error))]
    if more:
        first.append(problem(f"{field}: {path} has {more} more such {seen.unit}s."))
    labels = list(independent(_label_problems(file, spec, seen), refused))
    if labels:  # says once what every row lacks
        end = f" more such {seen.unit}s."
        first = [one for one in first if _LABEL_IS_MISSING not in one.text and not one.text.endswith(end)]
    return [*first, *labels, *_system_problem(file, spec, seen), *_warnings(file, spec, seen)]


def _format_problem(path: Path) -> str | None:
    with path.open("rb") as file:
        beginning = file.read(8)
    if is_utf_16(beginning):
        return "is UTF-16 or UTF-32. Give it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE."
    return next((cure for magic, cure in _FORMATS if beginning.startswith(magic)), None)


def _row_problems(file: PromptFile, spec: RLJobSpec, seen: _Seen) -> Iterator[Finding]:
    characters, limit, labels = _known_characters(spec.model), _limit(spec), _Labels.of(spec, file)
    is_empty = True
    for number, entry, unread in _entries(file):
        is_empty = False
        wrong = unread
        uses: tuple[str, ...] = ()
        if entry is not None:
            _count(seen, entry, number, file, limit)
            wrong = (
                _key_problem(entry, file, spec.data.source_key)
                or (labels and labels.problem(entry))
                or _prompt_problem(entry[file.prompt_key], file.prompt_key, characters)
                or _tools_problem(entry, file, spec)
            )
            uses = (_KEY, _MODEL, *_LABEL)
        if wrong is not None:
            yield problem(f"spec.{file.field}: {file.path} {seen.unit} {number}: {wrong}", *uses)
    if is_empty:
        yield problem(f"spec.{file.field}: {file.path} holds no prompts. Give a file with a JSON object per line.")


def _entries(file: PromptFile) -> Iterator[tuple[int, dict[str, Any] | None, str | None]]:
    """Number of each row, from 1, and its columns, or what is wrong with it."""
    path = Path(file.path)
    if is_table(path):
        table = open_table(path, f"spec.{file.field}")
        yield from ((index + 1, table.row(index), None) for index in range(len(table)))
        return
    with path.open("rb") as lines:
        yield from ((number, *_entry(line)) for number, line in enumerate(lines, start=1) if line.strip())


def _entry(line: bytes) -> tuple[dict[str, Any] | None, str | None]:
    try:
        entry = parsed(line.strip())
    except ValueError as error:
        if line.strip() in (b"[", b"{"):
            return None, "is JSON over several lines, not JSONL. Give a JSON object per line: jq -c '.[]' FILE."
        return None, f"is not JSON ({error}). Give a JSON object per line."
    if not isinstance(entry, dict):
        return None, "is not a JSON object. Give a JSON object per line."
    return entry, None


def _key_problem(entry: dict[str, Any], file: PromptFile, source_key: str | None) -> str | None:
    if file.prompt_key not in entry:
        return f"has no key {file.prompt_key!r}. Add it or set data.promptKey."
    if source_key is not None and not _is_source(entry.get(source_key)):
        return f"has no text of 1 to {MAX_SOURCE_CHARACTERS} characters under {source_key!r}. Correct data.sourceKey."
    return None


@dataclass(frozen=True, slots=True)
class _Labels:
    """The demands of the job's reward on a row's label."""

    key: str
    kinds: frozenset[str]
    """Kinds of rewards that compare with it."""
    must_be_right: bool
    """False where a rollout function may give the reward itself: then any value will do."""

    @classmethod
    def of(cls, spec: RLJobSpec, file: PromptFile) -> _Labels | None:
        """None where no label is compared with."""
        reward = spec.rollout.reward
        if file.label_key is None or not reward.compares_with_labels:
            return None
        kinds = {kind for each in reward.sum or (reward,) for kind in each.kinds or ("exactMatch",)}
        return cls(file.label_key, frozenset(kinds - set(WITHOUT_LABELS)), spec.rollout.function is None)

    def problem(self, entry: dict[str, Any]) -> str | None:
        if self.key not in entry:
            return f"has no key {self.key!r}, {_LABEL_IS_MISSING}. Add it or set data.labelKey."
        wrong = label_problem(entry[self.key], self.kinds) if self.must_be_right else None
        return None if wrong is None else f"the label under {self.key!r} {wrong}"


def _is_source(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_SOURCE_CHARACTERS


def _prompt_problem(prompt: Any, key: str, characters: frozenset[str] | None) -> str | None:  # noqa: ANN401 - JSON
    try:
        read = read_prompt(prompt)
    except ValueError as error:
        return f"{key!r} {error}"
    text = read if isinstance(read, str) else ""
    strange = next((char for char in text if characters is not None and char not in characters), None)
    if strange is not None:
        return f"the character {strange!r} is not in the alphabet. Add it to model.config.tokenizer.alphabet."
    return None


def _tools_problem(entry: dict[str, Any], file: PromptFile, spec: RLJobSpec) -> str | None:
    """Tools are nothing but a column where no template is applied."""
    if isinstance(entry[file.prompt_key], str) and not spec.data.apply_chat_template:
        return None
    try:
        read_tools(entry.get(TOOLS))
    except ValueError as error:
        return f"the tools {error}"
    return None


def _known_characters(model: ModelSpec) -> frozenset[str] | None:
    """The alphabet that prompts must keep to; None where every text has tokens."""
    if model.config is None or model.tokenizer_path is not None:
        return None
    tokenizer = model.config.tokenizer
    return frozenset(alphabet_of(tokenizer)) if tokenizer.kind is TokenizerKind.CHARACTER else None


def positions_of(spec: RLJobSpec) -> int | None:
    """Longest sequence that the job's engines take; None where that is unknown here."""
    if spec.model.config is not None:
        return spec.model.config.max_position_embeddings
    return max_positions(spec, json_object(Path(spec.model.path or "") / "config.json") or {})


def _limit(spec: RLJobSpec) -> _Limit | None:
    """None where it is unknown."""
    model, given, positions = spec.model, spec.rollout.max_prompt_tokens, positions_of(spec)
    limits = [(given, "rollout.maxPromptTokens"), (positions and positions - 1, "the model's positions")]
    known = [(tokens, name) for tokens, name in limits if tokens]
    if not known:
        return None
    tokens, name = min(known)
    is_made = model.config is not None and model.tokenizer_path is None
    by_bytes = is_made and model.config is not None and model.config.tokenizer.kind is TokenizerKind.BYTE
    return _Limit(tokens, name, is_made, by_bytes, spec.data.system_prompt or "")


def _count(seen: _Seen, entry: dict[str, Any], number: int, file: PromptFile, limit: _Limit | None) -> None:
    seen.rows += 1
    seen.with_label += file.label_key is not None and file.label_key in entry
    if len(seen.keys) < _SHOWN_KEYS:
        seen.keys |= dict.fromkeys(list(entry)[:_SHOWN_KEYS])
    if file.prompt_key not in entry:
        return
    try:
        read = read_prompt(entry[file.prompt_key])
    except ValueError:  # its line says so
        return
    seen.texts += isinstance(read, str)
    text = read if isinstance(read, str) else json.dumps(read, sort_keys=True, default=str)
    seen.blank += not spoken_text(read).strip()
    if not isinstance(read, str):
        text += json.dumps(entry.get(TOOLS), sort_keys=True, default=str)
    digest = blake2b(text.encode(), digest_size=16).digest()
    first = seen.first_line.setdefault(digest, number)
    if first != number:
        seen.repeated += 1
        seen.example = seen.example or (first, number)
    if limit is not None:
        length = limit.length(whole_text(read))
        seen.too_long += length > limit.tokens
        seen.longest = max(seen.longest, (length, number))


def _label_problems(file: PromptFile, spec: RLJobSpec, seen: _Seen) -> Iterator[Finding]:
    """A key that was given, or that the reward needs, and that no row has."""
    data = spec.data
    is_meant = "label_key" in data.model_fields_set or spec.rollout.reward.compares_with_labels
    if file.label_key is None or seen.with_label or not seen.rows or not is_meant:
        return
    if seen.rows == 1 and spec.rollout.reward.compares_with_labels:
        return  # its line says so
    keys = ", ".join(seen.keys)
    yield problem(
        f"spec.data.labelKey: no row of {file.path} has {file.label_key!r}; they have {keys}. Give one of these, or"
        " an empty text for a reward without labels.",
        _PROMPTS,
        _SOURCES,
        *_LABEL,
    )


_CONSEQUENCES = {
    LongPrompts.DROP: "they are passed over, and counted as prompts_passed_over in metrics.jsonl",
    LongPrompts.TRUNCATE: "their last tokens are taken, and they are counted as prompts_truncated in metrics.jsonl",
    LongPrompts.REFUSE: "the first of them fails the job (rollout.longPrompts)",
}


def _system_problem(file: PromptFile, spec: RLJobSpec, seen: _Seen) -> Iterator[Finding]:
    if spec.data.system_prompt is not None and seen.texts and not spec.data.apply_chat_template:
        yield problem(
            f"spec.data.systemPrompt: {seen.texts} of {seen.rows} prompts of {file.path} are texts and no chats, in"
            " which a system could say something. Set data.applyChatTemplate, or remove systemPrompt.",
            _KEY,
            _PROMPTS,
            _SOURCES,
            "spec.data.applyChatTemplate",
        )


def _warnings(file: PromptFile, spec: RLJobSpec, seen: _Seen) -> Iterator[Finding]:
    data, limit, field = spec.data, _limit(spec), f"spec.{file.field}"
    if seen.example is not None:
        first, again = seen.example
        yield warning(
            f"{field}: {seen.repeated} of {seen.rows} prompts are there more than once ({seen.unit} {again} has that"
            f" of {seen.unit} {first}), so that they count more than others. Remove them where that is not meant.",
            _KEY,
        )
    if seen.blank:
        yield warning(f"{field}: {seen.blank} of {seen.rows} prompts have nothing but white space. Remove them.", _KEY)
    if limit is not None and seen.too_long:
        has_template = data.apply_chat_template or seen.texts < seen.rows
        how = "" if limit.is_exact else f", with a token for {CHARACTERS_PER_TOKEN} characters"
        how += ", without what the template adds" if has_template else ""
        length, number = seen.longest
        refuses = spec.rollout.long_prompts is LongPrompts.REFUSE
        yield (problem if refuses and limit.is_exact else warning)(
            f"{field}: {seen.too_long} of {seen.rows} prompts have more tokens than {limit.tokens}"
            f" ({limit.field}{how}; the longest, {seen.unit} {number}, has {length}):"
            f" {_CONSEQUENCES[spec.rollout.long_prompts]}. Shorten them, or raise the limit.",
            _KEY,
            _MODEL,
            "spec.rollout.maxPromptTokens",
            "spec.rollout.longPrompts",
            "spec.roles.rollout",
        )
    folder, is_given = spec.model.tokenizer_path or spec.model.path, "apply_chat_template" in data.model_fields_set
    if seen.texts and not is_given and folder is not None and has_chat_template(Path(folder)):
        yield warning(
            f"spec.data.applyChatTemplate: the tokenizer in {folder} has a chat template, but {seen.texts} of"
            f" {seen.rows} prompts are texts, which the model gets as they are. Set it to true for a model that was"
            " trained on conversations, or to false where that is meant.",
            _KEY,
            _PROMPTS,
            _SOURCES,
            _MODEL,
        )
