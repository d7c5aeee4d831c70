"""Every filter and selector that the registry finds keeps to its suite; so does a new one that is only a file."""

import pytest

from distill.spec.registries import FILTERS, SELECTORS
from tests.distill.conformance import FILTER_SUITE, SELECTOR_SUITE

OWN_FILTER = '''
from distill.data.pipeline import each, placed


@placed(45)
def polite(*, word: str = "please"):
    """Keep answers without a word.

    Args:
        word: what an answer must not hold.
    """
    return each(lambda sample: f"says {word}" if word in sample.text else None)
'''

OWN_SELECTOR = '''
def longest():
    """Order by length in tokens, the longest first."""
    return lambda samples, seed: sorted(samples, key=lambda sample: (-sample.num_tokens, sample.key))
'''


@pytest.mark.parametrize("check", FILTER_SUITE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FILTERS.names())
def test_every_filter_passes_the_suite_of_filters(name, check):
    check(name)


@pytest.mark.parametrize("check", SELECTOR_SUITE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SELECTORS.names())
def test_every_selector_passes_the_suite_of_selectors(name, check):
    check(name)


@pytest.mark.parametrize("check", FILTER_SUITE, ids=lambda check: check.__name__)
def test_a_filter_that_is_one_new_file(tmp_path, check):
    file = tmp_path / "polite.py"
    file.write_text(OWN_FILTER)
    check(f"{file}:polite")


@pytest.mark.parametrize("check", SELECTOR_SUITE, ids=lambda check: check.__name__)
def test_a_selector_that_is_one_new_file(tmp_path, check):
    file = tmp_path / "longest.py"
    file.write_text(OWN_SELECTOR)
    check(f"{file}:longest")
