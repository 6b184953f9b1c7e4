"""Around a library that meets other ranks: pulses while it is blocked, and a name for who is missing."""

from __future__ import annotations

from pathlib import Path

from tests.integration.preloaded.client import fork_program

PATIENCE_SECONDS = 300.0
"""Never measured: on a busy machine the imports of a rank alone take a good part of a minute."""


def both_ranks(folder: Path, does: str) -> list[tuple[int, str]]:
    """Exit code and last message of rank 0 and rank 1."""
    ended = []
    processes = []
    for rank in (0, 1):
        with (folder / f"errors{rank}").open("wb") as errors:
            arguments = [str(folder), str(rank), does]
            processes.append(fork_program("tests.integration.trainers.collective_ranks", arguments, output=errors))
    for rank, process in enumerate(processes):
        ended.append((process.wait(PATIENCE_SECONDS), (folder / f"errors{rank}").read_text()))
    return ended


def test_a_rank_that_is_blocked_in_the_library_gives_pulses_until_the_block_ends(tmp_path: Path) -> None:
    for code, text in both_ranks(tmp_path, "come late"):
        assert (code, text) == (0, "[16.0, 16.0]\n")


def test_a_rank_that_leaves_breaks_the_others_block_by_name(tmp_path: Path) -> None:
    (code, text), _ = both_ranks(tmp_path, "leave")
    assert code == 3
    assert "GroupBroken: data-parallel group: rank 0 of 2 could not go through the second forward" in text
    assert "It waited for rank 1, last seen in a first sum." in text


def test_an_error_that_is_not_of_the_group_stays_what_it_is(tmp_path: Path) -> None:
    (code, text), _ = both_ranks(tmp_path, "fail alone")
    assert code == 1
    assert "RuntimeError: inconsistent tensor size" in text
