"""A file of secrets: what can be written in it, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.policy.secrets import MAX_BYTES, SecretFile, parse

FILE = r"""# a comment, and an empty line

PLAIN=sk-1234
SPACED = with blanks   # and a comment
HASH=a#b
export EXPORTED=yes-yes
SINGLE='as it stands: $HOME \n "x"' # comment
DOUBLE="a \"quoted\" word,\ta tab, a \\ and \d"
MULTI="-----BEGIN-----
abc=
-----END-----"
EMPTY=
LAST=no newline at the end"""


def test_values_are_read_as_people_write_them() -> None:
    assert parse(FILE.encode(), "f") == {
        "PLAIN": "sk-1234",
        "SPACED": "with blanks",
        "HASH": "a#b",
        "EXPORTED": "yes-yes",
        "SINGLE": r'as it stands: $HOME \n "x"',
        "DOUBLE": 'a "quoted" word,\ta tab, a \\ and \\d',
        "MULTI": "-----BEGIN-----\nabc=\n-----END-----",
        "EMPTY": "",
        "LAST": "no newline at the end",
    }


def test_windows_line_ends_and_a_byte_order_mark_do_not_matter() -> None:
    assert parse(b"\xef\xbb\xbfA=1234\r\nB='5678'\r\n", "f") == {"A": "1234", "B": "5678"}


def test_of_a_name_that_stands_twice_the_last_value_counts() -> None:
    assert parse(b"A=1234\nA=5678\n", "f") == {"A": "5678"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A=1\nhunter2 is it\n", 2),
        ("=hunter2\n", 1),
        ("A-B=hunter2\n", 1),
        ("A=1\nB='hunter2\n\n", 2),
        ('A="hunter2" hunter2\n', 1),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line_and_without_its_text(text: str, line: int) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text.encode(), "secrets.env")
    assert f"line {line} of the file of secrets secrets.env" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_other_encodings_are_refused() -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        parse(b"A=\xff\xfe", "f")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.env"
    path.write_text("A=first-value\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_can_reach_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(RequestError) as caught:
        SecretFile(path).values()
    assert caught.value.hint == f"run: chmod 600 {path}"


def test_a_file_is_read_again_when_it_has_changed_and_only_then(path: Path) -> None:
    file = SecretFile(path)
    assert file.changed()
    first = file.values()
    assert first == {"A": "first-value"}
    assert not file.changed()
    assert file.values() is first
    path.write_text("A=other-value\n")
    assert file.changed()
    assert file.values() == {"A": "other-value"}


def test_a_file_that_was_opened_to_others_is_refused_from_then_on(path: Path) -> None:
    file = SecretFile(path)
    file.values()
    path.chmod(0o644)
    assert file.changed()
    with pytest.raises(RequestError):
        file.values()


def test_what_is_no_ordinary_file_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, reason in ((pipe, "ordinary"), (tmp_path, "ordinary"), (tmp_path / "none", "No such file")):
        with pytest.raises(RequestError, match=reason):
            SecretFile(path).values()


def test_a_huge_file_is_refused(path: Path) -> None:
    path.write_bytes(b"A=" + b"x" * MAX_BYTES)
    with pytest.raises(RequestError, match="bytes"):
        SecretFile(path).values()
