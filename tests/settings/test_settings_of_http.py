"""Where MCP is served over HTTP: what can be said, and what is refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.mcp_server.http import require_token
from workflows_mcp.settings.http import Address, HttpSettings, read_address
from workflows_mcp.settings.model import load_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("said", "host", "port", "loopback"),
    [
        ("", "127.0.0.1", 8000, True),
        ("9000", "127.0.0.1", 9000, True),
        (":9000", "127.0.0.1", 9000, True),
        (":0", "127.0.0.1", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("127.8.9.1", "127.8.9.1", 8000, True),
        ("[::1]:8080", "::1", 8080, True),
        ("[::]", "::", 8000, False),
        ("0.0.0.0:8000", "0.0.0.0", 8000, False),
        ("192.168.1.7:8000", "192.168.1.7", 8000, False),
        ("flows.example.org:443", "flows.example.org", 443, False),
    ],
)
def test_an_address_is_a_host_a_port_or_both(said: str, host: str, port: int, loopback: bool) -> None:
    address = read_address("--http", said)
    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)
    assert read_address("--http", str(address)) == address


@pytest.mark.parametrize("said", ["http://x:1", "a b", "x:y", "x:-1", "x:70000", "::1", "host:1:2", "x/mcp"])
def test_what_is_no_address_is_refused(said: str) -> None:
    with pytest.raises(RequestError, match="--http must be HOST:PORT") as refusal:
        read_address("--http", said)
    assert "127.0.0.1:8000" in refusal.value.hint


def test_without_a_word_about_it_nothing_is_served_over_http(tmp_path: Path) -> None:
    assert load_settings({}, workspace=tmp_path).http == HttpSettings(address=None, token=None, hosts=())


def test_the_environment_says_where_for_whom_and_by_which_names(tmp_path: Path) -> None:
    (tmp_path / "workflows.toml").write_text('[http]\nhosts = ["of.the.file"]\n')
    trusted = {"WORKFLOWS_TRUST": str(tmp_path)}
    assert load_settings(trusted, workspace=tmp_path).http.hosts == ("of.the.file",)
    environ = {
        "WORKFLOWS_HTTP_ADDRESS": "0.0.0.0:80",
        "WORKFLOWS_HTTP_TOKEN": "s3cr3t",
        "WORKFLOWS_HTTP_HOSTS": "A.example.org, [::1]",
    }
    settings = load_settings(environ, workspace=tmp_path)
    assert settings.http == HttpSettings(Address("0.0.0.0", 80), "s3cr3t", ("a.example.org", "[::1]"))
    assert "s3cr3t" not in repr(settings)
    empty = dict.fromkeys(environ, "")
    assert load_settings(empty, workspace=tmp_path).http == HttpSettings()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[http]\ntoken = 'abc'", "the token must not be set in a file", "WORKFLOWS_HTTP_TOKEN"),
        ("[http]\naddress = ':1'", "must not be set in a file", "WORKFLOWS_HTTP_ADDRESS"),
        ("[http]\nhots = 'x'", "unknown setting 'http.hots'", "did you mean 'hosts'"),
        ("[http]\nhosts = 5", "'http.hosts' must be host names", ""),
        ("[http]\nhosts = ['https://x']", "not a host name", "without http://"),
        ("http = 1", "'http' must be a table", ""),
    ],
)
def test_what_a_file_says_wrong_is_told_with_what_to_do(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    (tmp_path / "workflows.toml").write_text(text)
    with pytest.raises(RequestError) as refusal:
        load_settings({}, workspace=tmp_path)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


def test_a_token_that_cannot_be_sent_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="WORKFLOWS_HTTP_TOKEN") as refusal:
        load_settings({"WORKFLOWS_HTTP_TOKEN": "two words"}, workspace=tmp_path)
    assert "two words" not in str(refusal.value)


def test_every_setting_of_http_is_documented() -> None:
    for page in ("docs/settings.md", "docs/http.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in ("ADDRESS", "TOKEN", "HOSTS"):
            assert f"`WORKFLOWS_HTTP_{name}`" in text or f"| `{name}` |" in text


@pytest.mark.parametrize("token", ["%1", "fifteen-letters"])
def test_a_token_that_can_be_guessed_is_refused_where_others_can_reach_the_server(token: str) -> None:
    http, everywhere = HttpSettings(token=token), Address("0.0.0.0", 8000)
    with pytest.raises(RequestError, match="fewer than 16 characters") as refusal:
        require_token(http, everywhere)
    assert token not in refusal.value.message
    require_token(http, Address("127.0.0.1", 8000))
    require_token(HttpSettings(token="0123456789abcdef"), everywhere)
