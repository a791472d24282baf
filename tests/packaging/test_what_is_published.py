"""What is published about the package agrees with the package: the registry of MCP servers, licence, changelog."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from workflows_mcp import __version__
from workflows_mcp.settings.model import _READERS, LEVELS, PREFIX, TOOLSETS, load_settings

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(text("pyproject.toml"))["project"]
    return found


def registered() -> tuple[dict[str, Any], dict[str, Any]]:
    """What `server.json` says of the server, and of its one package."""
    server: dict[str, Any] = json.loads(text("server.json"))
    [package] = server["packages"]
    return server, package


def test_the_registry_is_told_the_version_and_the_name_of_the_package() -> None:
    server, package = registered()
    assert server["$schema"].endswith("/2025-12-11/server.schema.json")
    assert server["version"] == package["version"] == project()["version"] == __version__
    assert (package["registryType"], package["identifier"]) == ("pypi", project()["name"])
    assert package["identifier"] in project()["scripts"], "uvx runs the program of the package's own name"
    assert (package["runtimeHint"], package["transport"]) == ("uvx", {"type": "stdio"})


def test_the_registry_takes_the_name_and_the_length_of_the_description() -> None:
    server, _ = registered()
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert 1 <= len(server["description"]) <= 100
    assert 1 <= len(server["title"]) <= 100


def test_the_readme_proves_to_the_registry_whose_package_it_is() -> None:
    assert re.findall(r"<!-- mcp-name: (\S+) -->", text("README.md")) == [registered()[0]["name"]]


def test_the_page_of_the_package_is_the_readme_with_links_that_lead_somewhere_from_there() -> None:
    address = project()["urls"]["Repository"]
    assert address == "https://github.com/" + registered()[0]["name"].removeprefix("io.github.")
    assert [url for url in project()["urls"].values() if not url.startswith(address)] == []
    readme = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    assert text("README.md").splitlines()[0] == readme.splitlines()[0]
    assert f"[Tutorial]({address}/blob/HEAD/docs/tutorial.md)" in readme
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", text("README.md")))
    assert [link for link in links if not link.startswith("https://")] == []
    there = [
        link.removeprefix(f"{address}/blob/HEAD/").partition("#")[0] for link in links if address in link
    ]
    assert [name for name in there if not (ROOT / name).exists()] == []


def test_the_readme_begins_with_commands_that_install_it_from_a_checkout() -> None:
    """Nothing is installed by name from an index: the package is not there."""
    before, _, _ = text("README.md").partition("\n## ")
    for line in ("make setup", "make demo", "make test", "uv tool install /path/to/this"):
        assert line in before
    assert not re.search(rf"(install|uvx) {project()['name']}", text("README.md"))


def test_every_variable_that_the_registry_offers_is_a_setting_with_that_default() -> None:
    variables = {it["name"]: it for it in registered()[1]["environmentVariables"]}
    assert [name for name in variables if name.removeprefix(PREFIX).lower() not in _READERS] == []
    assert [name for name, it in variables.items() if not it["description"]] == []
    plain = load_settings({})
    said = {name: it["default"] for name, it in variables.items() if "default" in it}
    assert load_settings(said) == plain
    assert variables["WORKFLOWS_SECURITY_LEVEL"]["choices"] == list(LEVELS)
    assert [it for it in TOOLSETS if it not in variables["WORKFLOWS_TOOLSETS"]["description"]] == []


def test_the_changelog_has_a_section_for_what_comes_and_one_for_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", text("CHANGELOG.md"), re.M)
    assert headings[:2] == ["Unreleased", __version__]


def test_the_licence_is_the_one_that_the_metadata_name() -> None:
    assert project()["license"] == "MIT"
    assert project()["license-files"] == ["LICENSE"]
    assert text("LICENSE").startswith("MIT License\n")
