"""Assemble the page from its sources into one file, which the node serves and `report` copies.

The result depends only on the sources. The style sheet and the script stand inline, because the
page's policy allows nothing else, and each in one element, because the server names their hashes in
that policy. The page has a limit of bytes, so comments and most spaces are left out, and the names
of functions and constants are replaced by short ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "p2ptrain" / "web" / "static" / "page.html"
SOURCES = PAGE.parent / "source"
BYTES_MAX = 150_000

_IMPORT = re.compile(r'import \{ ([\w, ]+) \} from "\./(\w+)\.mjs";')
_TOP = re.compile(r"^(?:export )?(?:async )?(?:function|const|let) (\w+)", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<template>`(?:\\.|[^`\\])*`)
    |(?P<regex>/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/[a-z]*)
    |(?P<space>\s+)|(?P<word>[\w$\#]+)|(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)


class SourceFault(Exception):
    """A source is written in a way that this program does not understand."""


def assembled(sources: Path = SOURCES) -> str:
    """Return the page. Raises SourceFault."""
    licence = (sources / "uplot" / "LICENSE").read_text(encoding="utf-8").strip()
    plot = (sources / "uplot" / "uPlot.iife.min.js").read_text(encoding="utf-8").strip()
    script = [f"/*\nuPlot: {licence}\n*/", plot, '(() => {\n"use strict";']
    names: dict[tuple[str, str], str] = {}
    for name in in_order(sources):
        text = (sources / f"{name}.mjs").read_text(encoding="utf-8")
        script.append(joined(name, text, names))
    script.append("})();")
    style = (sources / "uplot" / "uPlot.min.css").read_text(encoding="utf-8").strip()
    style += "\n" + shortened_css((sources / "page.css").read_text(encoding="utf-8"))
    page = (sources / "page.html").read_text(encoding="utf-8")
    page = _inserted(page, "style", style)
    return _inserted(page, "script", "\n".join(script))


def in_order(sources: Path, root: str = "main") -> list[str]:
    """Return the modules that `root` needs, each after those that it imports."""
    found: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in open_:
            raise SourceFault(f"these modules import each other: {', '.join(open_)}")
        if name in found:
            return
        open_.append(name)
        text = (sources / f"{name}.mjs").read_text(encoding="utf-8")
        for _, other in _IMPORT.findall(text):
            visit(other)
        open_.pop()
        found.append(name)

    visit(root)
    left_over = {path.stem for path in sources.glob("*.mjs")} - set(found)
    if left_over:
        raise SourceFault(f"nothing imports {', '.join(sorted(left_over))}")
    return found


def joined(module: str, text: str, names: dict[tuple[str, str], str]) -> str:
    """Return the module without its imports and exports. All modules share one scope, so their
    names are replaced by short, unique ones: `names` maps (module, name) to these, and gets those
    of this module. Raises SourceFault.
    """
    own = {}
    for found in _TOP.findall(text):
        own[found] = names[module, found] = f"${len(names):x}"
    for imported, other in _IMPORT.findall(text):
        for found in imported.split(", "):
            if (other, found) not in names:
                raise SourceFault(f"{module}.mjs imports {found}, which {other}.mjs does not have")
            own[found] = names[other, found]
    lines = [re.sub(r"^export ", "", _IMPORT.sub("", line)) for line in text.splitlines()]
    for line in lines:
        if line.startswith(("import ", "{", "default ")):
            raise SourceFault(f"{module}.mjs has a line that cannot be joined: {line}")
    return squeezed("\n".join(lines), own)


def squeezed(text: str, names: dict[str, str]) -> str:
    """Leave out comments, and spaces and line breaks that do not separate words. All statements of
    the sources end with a semicolon or a brace. Replace `names`, but not the names of properties.
    Raises SourceFault.
    """
    kept: list[str] = []
    brackets = [""]
    gap = False
    tokens = list(_tokens(text))
    for at, (kind, found) in enumerate(tokens):
        if kind == "space":
            gap = True
            continue
        following = next((each for kind, each in tokens[at + 1 :] if kind != "space"), "")
        if found in ("(", "[", "{"):
            brackets.append(found)
        elif found in (")", "]", "}"):
            brackets.pop()
        if kind == "word" and found in names:
            found = _renamed(found, names[found], "".join(kept[-3:]), following, brackets[-1])
        elif kind == "template":
            found = _template(found, names)
        kept.append(" " + found if gap and kept and _stays(kept[-1][-1], found[0]) else found)
        gap = False
    return "".join(kept)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield kinds and texts. A comment counts as a space."""
    place, before = 0, ""
    while place < len(text):
        token = _TOKEN.match(text, place)
        assert token is not None, "the last alternative matches any character"
        kind, found = str(token.lastgroup), token[0]
        if kind == "regex" and re.search(r"[\w$)\]]$", before):
            kind, found = "sign", "/"
        place += len(found)
        if kind == "comment":
            kind = "space"
        if kind != "space":
            before = found
        yield kind, found


def _renamed(name: str, to: str, before: str, after: str, bracket: str) -> str:
    before = before.strip()
    if before.endswith(".") and not before.endswith("..."):
        return name
    if bracket == "{" and before[-1:] in ("{", ","):
        if after == ":":
            return name
        if after in (",", "}", "="):
            raise SourceFault(f"a property has the same name as a function or constant: {name}")
    return to


def _template(text: str, names: dict[str, str]) -> str:
    if text.count("${") != len(re.findall(r"\$\{[^{}]*\}", text)):
        raise SourceFault(f"a template has braces inside: {text}")
    return re.sub(r"\$\{([^{}]*)\}", lambda part: f"${{{squeezed(part[1], names)}}}", text)


def _stays(before: str, after: str) -> bool:
    """Return whether the space between two signs is needed."""
    words = re.fullmatch(r"[\w$#]{2}", before + after) is not None
    return words or (before == after and before in "+-")


def shortened_css(text: str) -> str:
    """Leave out comments, line breaks and spaces beside signs."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text)
    return re.sub(r" ?([{};,]) ?|(:) ", r"\1\2", text).replace(";}", "}").strip()


def _inserted(page: str, tag: str, text: str) -> str:
    empty = f"<{tag}></{tag}>"
    if page.count(empty) != 1 or f"</{tag}" in text.lower():
        raise SourceFault(f"the page needs exactly one {empty}, and its text must not close it")
    return page.replace(empty, f"<{tag}>\n{text}\n</{tag}>")


def main() -> int:
    page = assembled()
    size = len(page.encode())
    PAGE.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {size} of {BYTES_MAX} bytes\n")
    return int(size > BYTES_MAX)


if __name__ == "__main__":
    sys.exit(main())
