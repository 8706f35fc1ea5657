"""The regression corpus: where its case files lie, and how they come first in every run.

Read by the plugin, so it imports neither torch nor triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

CORPUS = Path(__file__).parent / "corpus"
# Which report is covered by what; the only file of the folder that is no case.
COVERAGE = CORPUS / "coverage.json"
TEST = Path(__file__).parent / "test_corpus.py"


def case_files() -> list[Path]:
    """Return the case files of the corpus, sorted by name."""
    return sorted(path for path in CORPUS.glob("*.json") if path != COVERAGE)


def corpus_first(items: list[pytest.Item], *, workers: int = 1) -> None:
    """Move the replay of the corpus before everything else, in place.

    xdist hands each worker one stretch of the list to begin with, as it does for `--dist worksteal`, so each stretch
    begins with its part of the corpus.

    Args:
        items: what was collected; the same in every process.
        workers: processes that share it.
    """
    corpus = [item for item in items if item.path.parts[-2:] == TEST.parts[-2:]]
    others = [item for item in items if item.path.parts[-2:] != TEST.parts[-2:]]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        left = workers - worker
        mine, stretch = len(corpus) // left, (len(corpus) + len(others)) // left
        ordered += corpus[:mine] + others[: stretch - mine]
        del corpus[:mine], others[: stretch - mine]
    items[:] = ordered
