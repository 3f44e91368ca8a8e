"""The language of docstrings, comments, messages and documents stays within the budgets of `prose.py`."""

from collections.abc import Mapping

import pytest

from tests.structure.prose import ROOT, above_budget, files_far_above_budget, long_sentences, texts

_DOCUMENTS = [ROOT / "README.md", ROOT / "app/docs/start.md", *sorted((ROOT / "app/docs/guides").glob("*.md"))]


@pytest.fixture(scope="module")
def written() -> Mapping[str, Mapping[str, str]]:
    return texts()


def test_every_kind_of_text_is_within_its_budgets(written: Mapping[str, Mapping[str, str]]) -> None:
    assert list(above_budget(written)) == []


def test_no_long_file_is_far_above_a_budget(written: Mapping[str, Mapping[str, str]]) -> None:
    assert list(files_far_above_budget(written)) == []


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.stem)
def test_no_sentence_of_a_guide_is_longer_than_40_words(document: object) -> None:
    assert list(long_sentences(ROOT.joinpath(str(document)).read_text())) == []


def test_readme_fits_a_front_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
