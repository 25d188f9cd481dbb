"""The page: one HTML file with inline scripts and styles, and the policy that allows only these.

The Content-Security-Policy names the digest of each script and style element of the file. Even if a
peer's text got into the page as HTML, the browser would not run it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib import resources

PAGE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """The file as it is and compressed, and the policy for it. `tag` identifies its contents."""

    body: bytes
    compressed: bytes
    content_policy: str
    tag: str


def load_page() -> Page:
    """Load the page of this package."""
    return page_of(resources.files("p2ptrain.web").joinpath("static/page.html").read_bytes())


def page_of(body: bytes) -> Page:
    assert len(body) <= PAGE_BYTES_MAX, "the page is in this package"
    inline = _Inline()
    inline.feed(body.decode("utf-8"))
    inline.close()
    scripts = " ".join(map(_source, inline.scripts)) or "'none'"
    styles = " ".join(map(_source, inline.styles)) or "'none'"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    )
    tag = hashlib.sha256(body).hexdigest()[:16]
    return Page(body, gzip.compress(body, mtime=0), policy, tag)


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


class _Inline(HTMLParser):
    """Collects the texts of all script and style elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._open: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {"script": self.scripts, "style": self.styles}.get(tag)
        if found is not None:
            found.append("")
        self._open = found

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = None
