"""What the page of the package says: the README, with links that lead somewhere from there too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


class PublishedReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        files = f"{metadata['urls']['Repository']}/blob/HEAD"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = _RELATIVE_LINK.sub(rf"]({files}/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
