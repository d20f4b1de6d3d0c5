"""docs/lab-trust.md holds what its runs hold."""

from pathlib import Path

import pytest

from lab.errors import TrustError
from lab.trust.markdown import BEGIN, END, figures_markdown, rewrite

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_in_the_docs_is_made_from_the_runs_in_the_docs():
    assert figures_markdown(DOCS / "trust") in (DOCS / "lab-trust.md").read_text()


def test_rewriting_changes_nothing_outside_the_marks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    rewrite(page, DOCS / "trust")
    once = page.read_text()
    assert once.startswith(f"before\n{BEGIN}")
    assert once.endswith(f"{END}\nafter\n")
    assert "old" not in once
    rewrite(page, DOCS / "trust")
    assert page.read_text() == once


def test_a_missing_run_is_named_with_the_command_that_makes_it(tmp_path: Path):
    with pytest.raises(TrustError, match=r"engine\.json.*lab trust engine TRACE"):
        figures_markdown(tmp_path)
