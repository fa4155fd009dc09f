"""The table of behaviours names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (Path(__file__).parent / "README.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))
ROWS = re.findall(r"^\| ([A-Z]\d\d|mode \d+) \| (.+?) \| (.+?) \|$", TABLE, re.MULTILINE)


def test_every_row_says_what_holds_and_names_a_test() -> None:
    assert len(ROWS) > 100
    for row, rule, tests in ROWS:
        assert rule.strip(), row
        assert "::test_" in tests, row


def test_no_row_stands_twice() -> None:
    numbers = [row for row, _, _ in ROWS]
    assert sorted(set(numbers)) == sorted(numbers)


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_the_tests_that_the_table_names_exist(path: str) -> None:
    text = (TESTS / path).read_text()
    missing = [
        name
        for of, name in NAMED
        if of == path and not re.search(rf"^(async )?def {name}\(", text, re.M)
    ]
    assert missing == []


def test_every_test_of_this_directory_is_named_by_the_table() -> None:
    named = {name for path, name in NAMED if path.startswith("behaviours/")}
    written = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.M)
    }
    assert written - named == set()
