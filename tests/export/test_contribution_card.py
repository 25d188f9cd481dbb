"""A contribution card is believed only if its signature fits and its picture shows the facts."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, replace
from xml.etree import ElementTree

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.export.contribution_card import (
    _DOMAIN,
    CARD_BYTES_MAX,
    Card,
    millions,
    read_card,
    signed_card,
)
from p2ptrain.identity import Identity

ME, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
CARD = Card(
    peer=ME.peer,
    run="ab" * 32,
    run_name="metagene-mini",
    tokens=4_600_000,
    tokens_total=9_700_000,
    steps=212,
    first_step=12,
    last_step=435,
    height=900,
    head="cd" * 32,
    issued=1_800_000_000,
    loss_before=3.91,
    loss_after=2.36,
)


def test_signed_card_is_read_back_and_shows_its_facts() -> None:
    svg = signed_card(CARD, ME)
    assert read_card(svg) == CARD
    shown = [each.text for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")]
    assert shown[1:-1] == [
        "has trained in the run metagene-mini",
        "4.6 M of 9.7 M tokens (47.4%)",
        "212 outer steps, from 12 to 435",
        "held-out loss 3.910 before, 2.360 after these steps",
        "counted up to entry 900 of the ledger, 2027-01-15",
    ]
    unknown = replace(CARD, loss_before=None, tokens=0, tokens_total=0)
    assert read_card(signed_card(unknown, ME)) == unknown


def test_hostile_run_name_stays_text() -> None:
    evil = replace(CARD, run_name='</text><script>alert("x")</script>\x1b\u202e' + "x" * 100)
    svg = signed_card(evil, ME)
    assert "<script" not in svg
    assert svg.isprintable() or set(svg) - set(svg.replace("\n", "")) == {"\n"}
    ElementTree.fromstring(svg)
    assert read_card(svg) == evil


def test_altered_card_is_refused() -> None:
    svg = signed_card(CARD, ME)
    payload = re.findall(r"card\">([^ ]+) ", svg)[0]
    more = replace(CARD, tokens=9_000_000)
    forged = svg.replace(payload, base64.b64encode(more.payload).decode())
    with pytest.raises(RemoteProtocolError, match="signature on the card is wrong"):
        read_card(forged)
    with pytest.raises(RemoteProtocolError, match="the picture was changed") as caught:
        read_card(svg.replace("4.6 M of 9.7 M", "9.6 M of 9.7 M"))
    assert "the signed facts say: 4.6 M of 9.7 M tokens (47.4%)" in caught.value.evidence


def test_card_signed_by_another_peer_is_refused() -> None:
    signature = OTHER.sign(_DOMAIN + CARD.payload)
    svg = signed_card(CARD, ME)
    mark = re.findall(r" ([A-Za-z0-9+/=]+)</metadata>", svg)[0]
    with pytest.raises(RemoteProtocolError, match="signature"):
        read_card(svg.replace(mark, base64.b64encode(signature).decode()))


def packed(payload: bytes) -> str:
    facts, mark = (base64.b64encode(each).decode() for each in (payload, ME.sign(payload)))
    return f'<svg><metadata id="p2ptrain-card">{facts} {mark}</metadata></svg>'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<svg/>",
        signed_card(CARD, ME) * 2,
        signed_card(CARD, ME) + " " * CARD_BYTES_MAX,
        '<metadata id="p2ptrain-card">abc abc</metadata>',
        packed(b"["),
        packed(b"[]"),
        packed(b"[" * 40_000),
        packed(b"{}"),
        packed(json.dumps(asdict(CARD) | {"more": 1}).encode()),
        packed(json.dumps(asdict(CARD) | {"tokens": "many"}).encode()),
        packed(json.dumps(asdict(CARD) | {"tokens": True}).encode()),
        packed(json.dumps(asdict(CARD) | {"tokens": -1}).encode()),
        packed(json.dumps(asdict(CARD) | {"tokens": 10**8}).encode()),
        packed(json.dumps(asdict(CARD) | {"loss_after": float("nan")}).encode()),
        packed(json.dumps(asdict(CARD) | {"run_name": "x" * 201}).encode()),
        packed(json.dumps(asdict(CARD) | {"peer": "12D3KooWnobody"}).encode()),
    ],
)
def test_malformed_card_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read_card(text)
    assert caught.value.code == "CARD"


def test_numbers_of_tokens_are_short() -> None:
    assert [millions(count) for count in (0, 52_000, 4_600_000, 2_100_000_000)] == [
        "0",
        "52,000",
        "4.6 M",
        "2.1 G",
    ]
