"""What the pages show works: manifests are valid, commands take what they are given, links and files are there."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from rljob_cli.main import SUBCOMMANDS, cli

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOUR = ROOT / "docs/architecture.md"
OF_MAINTAINERS = [TOUR, *sorted((ROOT / "docs/protocols").glob("*.md"))]

PACKAGES = (
    "crds",
    "operator",
    "cli",
    "workers",
    "workers/rljob_workers",
    "operator/rljob_operator",
    "crds/rljob_api",
    "cli/rljob_cli",
    ".",
)
"""Where the files that a page of `OF_MAINTAINERS` names may lie."""

MENTIONED: tuple[list[str], ...] = ([], ["--audit"], ["--output", "json"], ["--off"])
"""Arguments of commands that the text only reports."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`((?:rljob|make) [^`]+)`")
_FILE = re.compile(r"`([\w./]+(?:\.py|\.lua|/))`")


def blocks(kind: str) -> list[tuple[Path, str]]:
    """Code blocks of all pages in this language."""
    return [(page, body) for page in PAGES for found, body in _BLOCK.findall(page.read_text()) if found == kind]


def manifests() -> list[tuple[Path, str]]:
    return [(page, body) for page, body in blocks("yaml") if "\nkind: RLJob" in body]


def parts() -> list[tuple[Path, str]]:
    """Parts of manifests: what begins with the spec."""
    return [(page, body) for page, body in blocks("yaml") if body.startswith("spec:")]


def commands() -> list[tuple[Path, list[str]]]:
    """Every `$ ...` of a console block, and every command in the text that is more than a name."""
    shown = [(page, line[2:]) for page, body in blocks("console") for line in body.splitlines() if line[:2] == "$ "]
    inline = [(page, command) for page in PAGES for command in _INLINE.findall(page.read_text())]
    text = [(page, shlex.split(command, comments=True)) for page, command in shown + inline]
    return [(page, command) for page, command in text if command[0] in ("rljob", "make")]


def named(found: list[tuple[Path, list[str]]]) -> list[object]:
    return [pytest.param(command, id=f"{page.name}: {' '.join(command)}") for page, command in found]


def test_there_are_manifests_and_commands_to_check() -> None:
    assert len(manifests()) >= 2
    assert parts()
    assert len(commands()) >= 10


@pytest.mark.parametrize("manifest", [pytest.param(body, id=page.name) for page, body in manifests()])
def test_manifests_on_pages_are_valid(manifest: str, tmp_path: Path) -> None:
    """Paths in them are relative to the page."""
    job = tmp_path / "job.yaml"
    job.write_text(re.sub(r"(\.\./)*\bexamples/", f"{ROOT}/examples/", manifest))
    result = CliRunner().invoke(cli, ["validate", str(job)])
    assert (result.exit_code, result.output) == (0, f"{job} is valid.\n")


@pytest.mark.parametrize(("page", "part"), [pytest.param(*one, id=one[0].name) for one in parts()])
def test_parts_of_manifests_on_pages_make_objects(page: Path, part: str, tmp_path: Path) -> None:
    """In the place of what the quickstart has there."""
    job = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())
    job["spec"] |= yaml.safe_load(part)["spec"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    result = CliRunner().invoke(cli, ["render", "--kubernetes", str(tmp_path / "job.yaml")])
    assert result.exit_code == 0, f"{page}: {result.output}"


OF_A_CHECKPOINT = "qwen3-*.yaml"
"""Examples of models that are fetched first: `test_gpu_examples` is about them."""


@pytest.mark.parametrize(
    "example",
    [path for path in sorted(ROOT.glob("examples/**/*.yaml")) if not path.match(OF_A_CHECKPOINT)],
    ids=lambda path: path.name,
)
def test_examples_are_valid(example: Path) -> None:
    result = CliRunner().invoke(cli, ["validate", str(example)])
    assert (result.exit_code, result.output) == (0, f"{example} is valid.\n")


@pytest.mark.parametrize("command", named([one for one in commands() if one[1][0] == "rljob"]))
def test_commands_on_pages_take_what_they_are_given(command: list[str]) -> None:
    """Parsed as they would be, not run; a manifest of ours that is named is there."""
    _, name, *arguments = command
    assert name in SUBCOMMANDS
    found = cli.get_command(click.Context(cli), name)
    while isinstance(found, click.Group) and arguments:
        name, *arguments = arguments
        found = found.get_command(click.Context(found), name)
    assert found is not None
    if arguments not in MENTIONED:
        found.make_context(name, list(arguments), resilient_parsing=False)
    for argument in arguments:
        if argument.startswith("examples/"):
            assert (ROOT / argument).is_file()


@pytest.mark.parametrize("command", named([one for one in commands() if one[1][0] == "make"]))
def test_targets_on_pages_are_in_the_makefile(command: list[str]) -> None:
    assert re.search(rf"^{command[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def anchor_of(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text()):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in [anchor_of(heading) for heading in headings], link


def named_files(page: Path) -> set[str]:
    """Modules, Lua files and folders of the source; others begin with a slash or a folder of a run."""
    return {file for file in _FILE.findall(page.read_text()) if not file.startswith("/")} - {"logs/", "reference/"}


@pytest.mark.parametrize("page", OF_MAINTAINERS, ids=lambda page: page.name)
def test_files_of_the_source_that_pages_name_are_there(page: Path) -> None:
    assert named_files(page)
    missing = {file for file in named_files(page) if not any((ROOT / package / file).exists() for package in PACKAGES)}
    assert missing == set()


def test_the_tour_is_short() -> None:
    assert len(TOUR.read_text().split()) <= 1500
