"""All figures of a checkout but those of the four ways, which take a traced job: `scripts/count-walks`.

Reads files below `root` and runs nothing. A figure has a name with dots, which `tests/ratchets.toml` has as sections.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from tests.ratchets.openings import openers, paragraphs, sentence_openers
from tests.ratchets.source import Source, Text, read

PACKAGES = ("crds", "operator", "workers", "cli", "helm")
PAGES = ("README.md", "examples/README.md", "docs/*.md", "docs/protocols/*.md")
"""docs/spec is made of docstrings, which count as such."""
TRACER = Path("scripts/walks/count.py")
_ENTRY_POINTS = ("__init__.py", "__main__.py")


@dataclass(frozen=True, slots=True)
class Found:
    """Where a figure comes from: a sentence to rewrite, or a file or function with its lines of code."""

    kind: str
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures by name, the sentences that `openings` counts, and files and functions from the largest on."""

    figures: Mapping[str, int]
    sentences: Sequence[Found]
    files: Sequence[Found]
    functions: Sequence[Found]


def measure(root: Path) -> Measured:
    """Reads all files that count."""
    sources = _sources(root)
    files = sorted(((source.code_lines, path) for path, source in sources.items() if source.code_lines), reverse=True)
    functions = sorted(
        ((each.code_lines, path, each) for path, source in sources.items() for each in source.functions),
        key=lambda sized: -sized[0],
    )
    sentences = _openers(root, sources)
    kinds = Counter(sentence.kind for sentence in sentences)
    lines: Counter[str] = Counter()
    for path, source in sources.items():
        lines[path.parts[0]] += source.code_lines
    figures = {
        "tracer.passages": _num_passages((root / TRACER).read_text()),
        **{f"sizes.file.{name}": value for name, value in _spread([size for size, _ in files]).items()},
        **{f"sizes.function.{name}": value for name, value in _spread([size for size, *_ in functions]).items()},
        **{f"openings.{kind}": kinds[kind] for kind in ("docstrings", "comments", "messages", "pages")},
        "recurring.file_names": _recurring(path.name for path in sources if path.name not in _ENTRY_POINTS),
        "recurring.class_names": _recurring(name for source in sources.values() for name in set(source.classes)),
        **{f"code_lines.{package}": lines[package] for package in PACKAGES},
    }
    return Measured(
        figures,
        sentences,
        [Found("file", str(path), f"{size} lines") for size, path in files],
        [Found("function", f"{path}:{each.line}", f"{each.name}: {size} lines") for size, path, each in functions],
    )


def _sources(root: Path) -> dict[Path, Source]:
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return {path.relative_to(root): read(path.read_text()) for path in paths}


def _openers(root: Path, sources: Mapping[Path, Source]) -> list[Found]:
    found: list[tuple[str, Path, Sequence[Text]]] = []
    for path, source in sources.items():
        found.append(("docstrings", path, openers(source.docstrings)))
        found.append(("comments", path, openers(source.comments)))
        found.append(("messages", path, sentence_openers(source.messages)))
    for page in sorted(page for pattern in PAGES for page in root.glob(pattern)):
        found.append(("pages", page.relative_to(root), openers(paragraphs(page.read_text()))))
    return [Found(kind, f"{path}:{each.line}", each.text.strip()) for kind, path, texts in found for each in texts]


def _spread(sizes: Sequence[int]) -> dict[str, int]:
    ordered = sorted(sizes)
    if not ordered:
        return {"median": 0, "p90": 0, "largest": 0}
    return {"median": median_low(ordered), "p90": ordered[len(ordered) * 9 // 10], "largest": ordered[-1]}


def _recurring(names: Iterable[str]) -> int:
    """How many names there are more than once."""
    return sum(count > 1 for count in Counter(names).values())


def _num_passages(code: str) -> int:
    """Entries of all lists of frames below which the tracer counts nothing: those named ..._PASSES."""
    assigned = [(node.targets[0], node.value) for node in ast.parse(code).body if isinstance(node, ast.Assign)]
    lists = [value for name, value in assigned if isinstance(name, ast.Name) and name.id.endswith("_PASSES")]
    return sum(len(ast.literal_eval(value)) for value in lists)
