"""The pages of the reference are what the models say, each with an example and its rules as sentences."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rljob_api.generate.crd import spec_schema
from rljob_api.generate.reference import INDEX, reference
from rljob_api.generate.section_examples import EXAMPLES
from rljob_cli.main import cli

PAGES = Path(__file__).parents[3] / "docs/spec"
SECTIONS = [name for name, field in spec_schema()["properties"].items() if field.get("properties")]


def test_the_committed_pages_are_what_the_command_writes(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["docs", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    written, committed = ({path.name: path.read_text() for path in at.iterdir()} for at in (tmp_path / "new", PAGES))
    assert written == committed == reference(), "run make docs"
    assert written.keys() == {INDEX, *(f"{name}.md" for name in SECTIONS)}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_page_begins_with_an_example_of_its_section(section: str) -> None:
    """That it is valid is asked of every example on a page."""
    assert section in EXAMPLES, "give one in rljob_api.generate.section_examples"
    assert section in yaml.safe_load(EXAMPLES[section])["spec"]
    lines = reference()[f"{section}.md"].splitlines()
    assert lines.index("```yaml") < lines.index("|---|---|---|---|---|")


def test_every_field_has_a_row_with_its_type_and_default() -> None:
    page = reference()["training.md"]
    assert "| `epochsPerRollout` | integer in [1, 64] | `1` | restart | Passes over one rollout. |" in page
    assert "| `globalBatchSize` | integer in [1, 1000000000] | required | restart |" in page


def test_items_of_lists_have_a_table_of_their_own() -> None:
    page = reference()["evaluation.md"]
    assert "## spec.evaluation.sets[]\n" in page
    assert "| `passReward` | number" in page


def test_an_object_that_reads_as_one_before_refers_to_it() -> None:
    page = reference()["roles.md"]
    assert "## spec.roles.critic.resources\n" in page
    assert "Fields as in [spec.roles.actor.resources](#specrolesactorresources)." in page
    assert page.count("| `requests` |") == 1


def test_rules_are_sentences_with_gaps_for_values_and_those_of_a_cluster_come_last() -> None:
    page = reference()["training.md"]
    sentence = "… does not divide rollout.batchSize x rollout.samplesPerPrompt (… x …). Give a divisor of that product."
    assert f"- `training.globalBatchSize`: {sentence}\n" in page
    _, _, on_a_cluster = reference()["scheduling.md"].partition("On a cluster also:")
    assert "- `scheduling.minRollouts`: … is more than the … rollouts" in on_a_cluster


def test_rules_of_list_items_name_the_list() -> None:
    assert "- `evaluation.sets[].data.prompts`: exactly one" in reference()["evaluation.md"]


def test_no_page_has_cel() -> None:
    assert not [name for name, text in reference().items() if "has(self" in text or "oldSelf" in text]
