"""Where the values of secrets come from, which may be used, and what is known of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from workflows_mcp.errors import MissingSecret, RequestError
from workflows_mcp.policy.secrets import Secrets, hidden_in_logs
from workflows_mcp.values import secret_mark

MARK = secret_mark("TOKEN")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.env"
    path.write_text("TOKEN=from-the-file\nOTHER=other-value\n")
    path.chmod(0o600)
    return path


def test_the_own_variable_goes_before_the_file_and_the_file_before_the_plain_variable(file: Path) -> None:
    environ = {"WORKFLOWS_SECRET_TOKEN": "from-our-variable", "TOKEN": "from-the-environment"}
    assert Secrets(file=file, environ=environ).put_in(MARK) == "from-our-variable"
    del environ["WORKFLOWS_SECRET_TOKEN"]
    assert Secrets(file=file, environ=environ).put_in(MARK) == "from-the-file"
    assert Secrets(environ=environ).put_in(MARK) == "from-the-environment"


def test_an_empty_variable_is_none(file: Path) -> None:
    assert Secrets(file=file, environ={"WORKFLOWS_SECRET_TOKEN": ""}).put_in(MARK) == "from-the-file"


def test_all_that_are_missing_are_named_with_the_ways_to_give_them() -> None:
    secrets = Secrets(environ={"THERE": "a-value"})
    with pytest.raises(MissingSecret) as caught:
        secrets.check(["TOKEN", "THERE", "KEY", "TOKEN"])
    assert caught.value.code == "missing_secret"
    assert caught.value.message == "the secret 'KEY' is missing; the secret 'TOKEN' is missing"
    for way in ("WORKFLOWS_SECRET_KEY", "WORKFLOWS_SECRETS_FILE", "environment variable KEY"):
        assert way in caught.value.hint
    secrets.check(["THERE"])


def test_to_ask_whether_secrets_are_there_makes_nothing_known() -> None:
    secrets = Secrets(environ={"THERE": "a-value"})
    assert secrets.missing(["TOKEN", "THERE", "KEY"]) == ["KEY", "TOKEN"]
    assert secrets.redact("a-value") == "a-value"


@pytest.mark.parametrize("value", ["abc", "  a  ", "a⟦b-c", "\udc80abcd"])
def test_what_cannot_be_kept_out_of_texts_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(MissingSecret) as caught:
        Secrets(environ={"TOKEN": value}).put_in(MARK)
    assert "the secret 'TOKEN'" in str(caught.value)
    assert value not in str(caught.value)


def test_only_names_that_the_settings_allow_may_be_used_but_all_are_taken_out(file: Path) -> None:
    secrets = Secrets(file=file, allowed=["OTHER"], environ={})
    assert secrets.put_in(secret_mark("OTHER")) == "other-value"
    with pytest.raises(MissingSecret, match="WORKFLOWS_SECRETS"):
        secrets.put_in(MARK)
    assert secrets.redact("from-the-file") == MARK


def test_a_value_that_was_changed_is_used_at_once_and_the_old_one_stays_hidden(file: Path) -> None:
    secrets = Secrets(file=file, environ={})
    assert secrets.put_in(MARK) == "from-the-file"
    file.write_text("TOKEN=rotated-value\n")
    assert secrets.put_in(MARK) == "rotated-value"
    assert secrets.redact("from-the-file rotated-value") == f"{MARK} {MARK}"
    assert secrets.redact("other-value") == secret_mark("OTHER")


def test_all_of_the_file_and_all_own_variables_are_hidden_without_being_used(file: Path) -> None:
    secrets = Secrets(file=file, environ={"WORKFLOWS_SECRET_MINE": "my-own-value", "PLAIN": "plain-value"})
    text = "other-value my-own-value plain-value"
    assert secrets.redact(text) == f"{secret_mark('OTHER')} {secret_mark('MINE')} plain-value"
    secrets.learn(["PLAIN", "NOT_THERE"])
    assert "plain-value" not in secrets.redact(text)


def test_of_two_names_of_one_value_the_mark_has_the_one_that_is_used() -> None:
    environ = {"WORKFLOWS_SECRET_A": "same-value", "WORKFLOWS_SECRET_B": "same-value"}
    secrets = Secrets(environ=environ, allowed=["B"])
    secrets.learn(["A", "B"])
    assert secrets.redact("same-value") == secret_mark("B")
    secrets.learn(["A"])
    assert secrets.redact("same-value") == secret_mark("B")


def test_a_file_that_cannot_be_used_stops_only_those_who_need_a_secret(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(0o644)
    secrets = Secrets(file=file, environ={"WORKFLOWS_SECRET_MINE": "my-own-value"})
    assert secrets.redact("text") == "text"
    assert secrets.redact("text") == "text"
    assert len([record for record in caplog.records if "chmod 600" in record.getMessage()]) == 1
    assert secrets.put_in(secret_mark("MINE")) == "my-own-value"
    with pytest.raises(MissingSecret, match="chmod 600"):
        secrets.check(["TOKEN"])


def test_a_line_that_a_changed_value_does_not_have_any_more_is_refused() -> None:
    environ = {"TOKEN": "first line\nsecond line"}
    secrets = Secrets(environ=environ)
    secrets.learn(["TOKEN"])
    hidden = secrets.redact("second line")
    assert secrets.put_in(hidden) == "second line"
    environ["TOKEN"] = "only one line"
    with pytest.raises(MissingSecret, match="has changed"):
        secrets.put_in(hidden)


def test_endless_nesting_is_refused() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for take in (Secrets(environ={}).redact, Secrets(environ={}).put_in):
        with pytest.raises(RequestError, match="nested") as caught:
            take(deep)
        assert caught.value.code == "unencodable"


# Logs


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def test_messages_arguments_exceptions_and_stacks_in_logs_hold_no_secrets(
    lines: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("some.library")
    with hidden_in_logs(Secrets(environ={"WORKFLOWS_SECRET_TOKEN": "hunter22"})):
        logger.debug("the value is %s", "hunter22")
        logger.info("badly %d formatted", "hunter22", stack_info=True)
        try:
            try:
                raise ValueError("cause hunter22")
            except ValueError as error:
                raise RuntimeError("hunter22 again") from error
        except RuntimeError:
            logger.exception("it broke")
    text = lines.text
    assert "hunter22" not in text.replace('raise ValueError("cause hunter22")', "").replace(
        'raise RuntimeError("hunter22 again")', ""
    )
    assert f"the value is {MARK}" in text
    assert f"ValueError: cause {MARK}" in text
    assert f"RuntimeError: {MARK} again" in text
    assert all(record.exc_info is None for record in lines.records)


def test_a_process_without_secrets_is_left_as_it_was(lines: pytest.LogCaptureFixture) -> None:
    before = [list(handler.filters) for handler in logging.getLogger().handlers]
    with hidden_in_logs(Secrets(environ={})):
        assert [handler.filters for handler in logging.getLogger().handlers] != before
    assert [handler.filters for handler in logging.getLogger().handlers] == before
