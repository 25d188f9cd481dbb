"""The report consists of files that are always whole, signed, and free of names if they must be."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, RunId
from p2ptrain.names import label, peer_name
from p2ptrain.web.report.badge import CHARACTERS_MAX, badge
from p2ptrain.web.report.signed_head import SiteHead, read_head
from p2ptrain.web.report.site import MARK, POINTED, static_page, to_json, write_site
from p2ptrain.web.report.without_names import without_names

ANN, BOB = (Identity.from_seed(letter * 32) for letter in (b"a", b"b"))
HEAD = SiteHead(RunId("1" * 64), 17, Digest("2" * 64), 8, 12_345, 1_790_000_000)


def words_of(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter() if each.text]


def test_badge_shows_progress_and_loss() -> None:
    assert "step 8 of 60, loss 2.36" in words_of(badge("demo", step=8, steps=60, loss=2.361))
    assert "complete, 60 steps" in words_of(badge("demo", step=60, steps=60, loss=None))
    assert "no news" in words_of(badge("demo", step=0, steps=60, loss=None, known=False))


def test_badge_of_a_hostile_name_is_still_a_picture() -> None:
    name = '<script>alert("x")</script>\x00\u202e&' * 9
    svg = badge(name, step=1, steps=2, loss=None)
    (shown, *_) = (text for text in words_of(svg) if text.startswith("<script>"))
    assert "<script" not in svg
    assert len(max(words_of(svg), key=len)) < 3 * CHARACTERS_MAX
    assert shown.isprintable()


def test_signed_head_is_checked_as_a_whole() -> None:
    text = HEAD.to_json(ANN)
    assert read_head(text) == (ANN.peer, HEAD)
    told = json.loads(text)
    for changes in (
        {"tokens": 99},
        {"peer": BOB.peer},
        {"signed": told["signed"][:-8]},
        {"signed": "ü"},
        {"signed": None},
    ):
        with pytest.raises(RemoteProtocolError):
            read_head(json.dumps(told | changes))
    for nonsense in ("", "[]", "{}", "[" * 9999):
        with pytest.raises(RemoteProtocolError):
            read_head(nonsense)


def test_site_files_are_replaced_at_once_and_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "site"
    write_site(folder, {"index.html": b"page", "data.json": to_json({"step": 1})})
    (folder / "CNAME").write_text("mine")
    reader = (folder / "data.json").open()
    write_site(folder, {"data.json": to_json({"step": 2})})
    assert json.load(reader) == {"step": 1}, "a reader of the old file gets all of it"
    reader.close()
    assert json.loads((folder / "data.json").read_bytes()) == {"step": 2}
    assert sorted(path.name for path in folder.iterdir()) == ["CNAME", "data.json", "index.html"]
    assert (folder / "data.json").stat().st_mode & 0o777 == 0o644


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_site(tmp_path / "file", {"badge.svg": b""})


def test_page_reads_the_file_beside_it() -> None:
    page = f"<html><head>{MARK}</head><script>1</script></html>".encode()
    assert static_page(page) == page.replace(MARK.encode(), POINTED.encode())


def test_names_and_ids_of_peers_disappear_everywhere() -> None:
    first, second = sorted((ANN.peer, BOB.peer))
    data = {
        "peers": [{"peer": ANN.peer, "name": peer_name(ANN.peer)}],
        "by_peer": {BOB.peer: [1.0, None]},
        "text": f"waits for {label(BOB.peer)}, then {peer_name(ANN.peer)} (…{ANN.peer[-6:]})",
        "step": 3,
    }
    shown = without_names(data)
    numbers = {first: "peer 1", second: "peer 2"}
    assert shown == {
        "peers": [{"peer": numbers[ANN.peer], "name": numbers[ANN.peer]}],
        "by_peer": {numbers[BOB.peer]: [1.0, None]},
        "text": f"waits for {numbers[BOB.peer]}, then {numbers[ANN.peer]}",
        "step": 3,
    }
    only = {"text": f"{peer_name(ANN.peer)} has joined"}
    assert without_names(only, [ANN.peer]) == {"text": "peer 1 has joined"}
    assert without_names({"text": "nobody"}) == {"text": "nobody"}
