"""README is read in a minute, and docs/README.md leads to every page once."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
INDEX = ROOT / "docs/README.md"
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_CLAIM = re.compile(
    r"\b(?:never|not)\s+(?:yet\s+)?(?:been\s+)?(?:run|seen|built|tried)\b[^.|]*\b(?:GPUs?|eight|two nodes)\b",
    re.IGNORECASE,
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_has_a_picture_a_manifest_two_commands_and_six_links() -> None:
    (manifest,) = [body for kind, body in _BLOCK.findall(README) if kind == "yaml"]
    commands = re.findall(r"^\$ (.+)$", README, re.MULTILINE)
    assert len(README.split()) <= 400
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 1
    assert len(manifest.splitlines()) <= 14
    assert commands == ["make demo", "make test"]
    assert len(re.findall(r"^- \[", README, re.MULTILINE)) == 6


def test_the_last_line_that_the_readme_shows_of_make_test_is_the_targets() -> None:
    (shown,) = re.findall(r"^(All passed\..*) \[\.\.\.\]$", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    (printed,) = re.findall(r'^\t@echo "(All passed\..*)"$', makefile, re.MULTILINE)
    (rest,) = re.findall(r"^LONG := (.*)$", makefile, re.MULTILINE)
    assert printed.replace("$(LONG)", rest).startswith(shown)


def test_the_index_names_every_page_once() -> None:
    inside = [link for link in _LINK.findall(INDEX.read_text()) if not link.startswith("..")]
    pages = [str(page.relative_to(INDEX.parent)) for page in INDEX.parent.rglob("*.md") if page != INDEX]
    assert sorted(inside) == sorted(pages)


def test_one_page_alone_states_what_was_never_run_on_a_gpu() -> None:
    """The others link to its section."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.[my][da]*")]
    pages += ROOT.glob("images/Containerfile*")
    stating = {str(page.relative_to(ROOT)) for page in pages if _CLAIM.search(_LINK.sub("", page.read_text()))}
    assert stating == {"docs/critique.md"}
