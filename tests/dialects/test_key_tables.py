"""The tables of keys in the pages of the dialects are those that read the keys."""

from __future__ import annotations

import pytest

from support.key_tables import MARKED, pages, tables, updated
from workflows_mcp.dialects import reactive, recognition, stateful
from workflows_mcp.dialects.keys import RETRY
from workflows_mcp.dialects.reactive_steps import REACTIVE
from workflows_mcp.plan.retry import RETRY_KEYS


@pytest.mark.rows("X12")
def test_the_pages_have_the_tables_of_the_code() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert updated(text) == text, f"{page.name} is not up to date: run `make tables`"


@pytest.mark.rows("X12")
def test_every_table_is_in_a_page() -> None:
    marked = {
        f"{it[2]} {it[3]}" for page in pages() for it in MARKED.finditer(page.read_text(encoding="utf-8"))
    }
    assert marked == tables().keys()


@pytest.mark.rows("X12")
def test_every_key_says_what_it_is() -> None:
    unsaid = {
        f"{name}: {key}" for name, table in tables().items() for key in table if not table[key].description
    }
    assert unsaid == set()


@pytest.mark.rows("X12")
def test_the_table_of_retries_has_the_keys_that_a_plan_reads() -> None:
    assert tuple(RETRY) == RETRY_KEYS


@pytest.mark.rows("X12")
def test_a_dialect_is_recognized_by_the_keys_and_control_steps_that_only_it_has() -> None:
    assert reactive.WORKFLOW.keys() - stateful.WORKFLOW.keys() == recognition.REACTIVE_KEYS
    assert stateful.WORKFLOW.keys() - reactive.WORKFLOW.keys() == recognition.STATEFUL_KEYS
    assert REACTIVE.control.keys() - stateful.CONTROL.keys() <= recognition.REACTIVE_TYPES
    assert stateful.CONTROL.keys() - REACTIVE.control.keys() <= recognition.STATEFUL_TYPES
