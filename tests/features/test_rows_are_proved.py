"""docs/features.md says nothing that no test proves, and no test proves a row that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rows import Proof, Row, listed, proofs, proofs_in, rows


def test_every_row_of_a_dialect_and_every_row_that_is_said_to_be_proved_is_proved() -> None:
    proved = {proof.row for proof in proofs()}
    of_dialects = [row for row in rows() if row.id[0] in "GRS"]
    wanted = [*of_dialects, *(row for row in rows() if row.state == "proved")]
    unproved = [f"{row.id} ({row.what})" for row in wanted if row.id not in proved]
    assert not unproved, "no test proves " + "; ".join(unproved)


def test_every_row_that_a_test_names_exists() -> None:
    known = {row.id for row in rows()}
    unknown = [f"{proof.row} in {proof.test}" for proof in proofs() if proof.row not in known]
    assert not unknown, "docs/features.md has no " + "; ".join(unknown)


def test_the_rows_are_in_order_and_each_is_there_once() -> None:
    found = [row.id for row in rows()]
    counts = {"G": 26, "R": 23, "S": 18, "X": 12}
    process = [f"P{n}" for n in range(1, 11)]
    operating = [row for row in found if row[0] == "O"]
    expected = [f"{kind}{n}" for kind, count in counts.items() for n in range(1, count + 1)]
    assert found == expected + process + operating
    assert operating == sorted(set(operating), key=lambda row: int(row[1:]))
    assert {row.state for row in rows()} <= {"proved", "planned"}


def test_every_row_is_listed_with_the_number_of_its_tests() -> None:
    some = [Row("G1", "Order", "proved"), Row("G2", "Waves", "proved"), Row("X1", "Survival", "planned")]
    found = [Proof("G1", "a"), Proof("G1", "b"), Proof("G1", "a"), Proof("G2", "b")]
    assert list(listed(some, found)) == [
        "G1     2  Order",
        "G2     1  Waves",
        "X1     0  Survival  (planned)",
        "",
        "2 of 3 rows are proved by tests",
        "not proved: X1",
    ]
    print("\n".join(listed(rows(), proofs())))  # pytest -rA shows it


def test_rows_are_read_off_the_tests_without_importing_them(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest, no_such_module\n\n"
        '@pytest.mark.rows("G1", "G2")\n@pytest.mark.parametrize("x", [1])\ndef test_a(x): ...\n\n'
        '@pytest.mark.rows("X1")\nasync def test_b(): ...\n\n'
        '@pytest.mark.rows("G3")\ndef helper(): ...\n'
    )
    assert [(proof.row, proof.test.split("::")[1]) for proof in proofs_in(file)] == [
        ("G1", "test_a"),
        ("G2", "test_a"),
        ("X1", "test_b"),
    ]
    file.write_text('pytestmark = [pytest.mark.slow, pytest.mark.rows("G1")]\n\ndef test_a(): ...\n')
    assert [proof.row for proof in proofs_in(file)] == ["G1"]
    file.write_text("@pytest.mark.rows(*ROWS)\ndef test_a(): ...\n")
    with pytest.raises(ValueError, match="write the row as text"):
        list(proofs_in(file))
