"""Versions that a release refuses: each place has a sentence of its own."""

from pathlib import Path

import pytest

from release.source import Refused, agreed_version


def files(folder: Path, *, chart: str = "1.2.3", app: str = "1.2.3", changelog: str = "1.2.3 (2026-11-30)") -> Path:
    (folder / "helm/rljob-operator").mkdir(parents=True)
    (folder / "helm/rljob-operator/Chart.yaml").write_text(f"version: {chart}\nappVersion: {app}\n")
    (folder / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {changelog}\n\n## 1.2.2 (2026-01-01)\n")
    return folder


def test_files_that_agree(tmp_path: Path) -> None:
    assert agreed_version(files(tmp_path)) == "1.2.3"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {"chart": "1.2.2"},
            "helm/rljob-operator/Chart.yaml has version 1.2.2, but pyproject.toml has version 1.2.3. Make them one.",
            id="the chart's",
        ),
        pytest.param(
            {"app": "1.2.4"},
            "helm/rljob-operator/Chart.yaml has appVersion 1.2.4, but pyproject.toml has version 1.2.3. Make them one.",
            id="that of what the chart installs",
        ),
        pytest.param(
            {"changelog": "1.2.3 (unreleased)"},
            "CHANGELOG.md begins with the heading '1.2.3 (unreleased)', but pyproject.toml has version 1.2.3. Write"
            " '## 1.2.3 (YYYY-MM-DD)'.",
            id="a changelog without a date",
        ),
        pytest.param(
            {"changelog": "1x2.3 (2026-11-30)"},
            "CHANGELOG.md begins with the heading '1x2.3 (2026-11-30)', but pyproject.toml has version 1.2.3. Write"
            " '## 1.2.3 (YYYY-MM-DD)'.",
            id="a changelog of another version",
        ),
    ],
)
def test_files_that_do_not_agree_are_named(changes: dict[str, str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        agreed_version(files(tmp_path, **changes))
    assert str(refused.value) == sentence
