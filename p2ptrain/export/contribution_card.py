"""A contribution card: a picture of what a peer has contributed, with the signed facts in it.

The peer signs the facts with its node's key. Anybody can check the signature, draw the card anew
and compare it with the picture, and count the tokens in the run's ledger, up to the entry that the
card names. The signature alone only proves whose statement the card is.

The file is an SVG, which strangers open. It is read as text, by one pattern, and never parsed as
XML.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import Self, get_type_hints

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id, verify
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.observe.cells import fitted

CARD_BYTES_MAX = 64 * 1024
"""Maximum size of a file that is read as a card. A card takes about 4 kB."""

_DOMAIN = b"p2ptrain contribution card 1\n"
_PLACE = re.compile(r'<metadata id="p2ptrain-card">([A-Za-z0-9+/=]+) ([A-Za-z0-9+/=]+)</metadata>')
_COUNT_MAX = 1 << 53
_TEXT_MAX = 200
_NAME_CELLS = 44
_LOSS_MAX = 1000.0


@dataclass(frozen=True, slots=True)
class Card:
    """The facts on a card. Outer steps count from 1. Losses are on held-out data, in nats per
    token; None if the peer does not know them.

    Raises RemoteProtocolError: a value is out of range.
    """

    peer: str
    run: str
    run_name: str
    tokens: int
    tokens_total: int
    steps: int
    first_step: int
    last_step: int
    height: int
    head: str
    """The digest of the ledger's entry at `height`, up to which the tokens are counted."""
    issued: int
    """The date, in Unix seconds."""
    loss_before: float | None = None
    loss_after: float | None = None

    def __post_init__(self) -> None:
        counts = (self.tokens, self.tokens_total, self.steps, self.first_step, self.last_step)
        texts = (self.peer, self.run, self.run_name, self.head)
        losses = (each for each in (self.loss_before, self.loss_after) if each is not None)
        if (
            not all(0 <= each <= _COUNT_MAX for each in (*counts, self.height, self.issued))
            or self.tokens > self.tokens_total
            or any(len(each) > _TEXT_MAX for each in texts)
            or not all(0 <= each <= _LOSS_MAX for each in losses)
            or not is_peer_id(self.peer)
        ):
            raise RemoteProtocolError("a value on the card is out of range", code="CARD")

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        """Return the card in a signed payload. Raises RemoteProtocolError."""
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError) as exc:
            raise RemoteProtocolError("the card's facts are not JSON", code="CARD") from exc
        types = get_type_hints(cls)
        if not isinstance(value, dict) or set(value) != set(types):
            raise RemoteProtocolError("the card has other facts than expected", code="CARD")
        for each in fields(cls):
            given = value[each.name]
            if isinstance(given, bool) or not isinstance(given, types[each.name]):
                raise RemoteProtocolError(f"the card's {each.name} is malformed", code="CARD")
        return cls(**value)

    @property
    def payload(self) -> bytes:
        """The bytes that are signed."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @property
    def words(self) -> list[str]:
        """The facts as lines of text."""
        share = self.tokens / self.tokens_total if self.tokens_total else 0.0
        day = time.strftime("%Y-%m-%d", time.gmtime(self.issued))
        lines = [
            f"{millions(self.tokens)} of {millions(self.tokens_total)} tokens ({share:.1%})",
            f"{self.steps:,} outer steps, from {self.first_step:,} to {self.last_step:,}",
        ]
        if self.loss_before is not None and self.loss_after is not None:
            before, after = self.loss_before, self.loss_after
            lines.append(f"held-out loss {before:.3f} before, {after:.3f} after these steps")
        lines.append(f"counted up to entry {self.height:,} of the ledger, {day}")
        return lines


def millions(count: int) -> str:
    """Format a number of tokens for people: "4.6 M", "52,000"."""
    for unit, scale in (("G", 10**9), ("M", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:,}"


def signed_card(card: Card, identity: Identity) -> str:
    """Return the SVG of a card, signed by the peer that it is about."""
    assert card.peer == identity.peer, "a node signs only its own card"
    return _drawn(card, identity.sign(_DOMAIN + card.payload))


def read_card(text: str) -> Card:
    """Return the facts of the card in the SVG `text`, which may come from anybody.

    Raises RemoteProtocolError (CARD): there is no card in it, the signature is wrong, or the
        picture shows anything else than the signed facts.
    """
    places = _PLACE.findall(text[:CARD_BYTES_MAX])
    if len(text) > CARD_BYTES_MAX or len(places) != 1:
        raise RemoteProtocolError("this file is not a contribution card", code="CARD")
    try:
        payload, signature = (base64.b64decode(each, validate=True) for each in places[0])
    except binascii.Error as exc:
        raise RemoteProtocolError("the card is damaged", code="CARD") from exc
    card = Card.from_payload(payload)
    if not verify(PeerId(card.peer), _DOMAIN + payload, signature):
        raise RemoteProtocolError(
            "the signature on the card is wrong: it was altered, or the peer did not sign it",
            code="CARD",
            evidence=[f"the card claims to be from {label(PeerId(card.peer))}"],
        )
    if card.payload != payload or _drawn(card, signature) != text:
        raise RemoteProtocolError(
            "the picture was changed, or another version of p2ptrain drew it",
            code="CARD",
            evidence=[f"the signed facts say: {line}" for line in card.words],
            do="believe the signed facts only, or ask the peer for a new card",
        )
    return card


def _drawn(card: Card, signature: bytes) -> str:
    name = escape(label(PeerId(card.peer)))
    run = escape(fitted(f"has trained in the run {card.run_name}", _NAME_CELLS))
    rows = "\n".join(
        f'<text x="32" y="{124 + 30 * number}" class="fact">{escape(line)}</text>'
        for number, line in enumerate(card.words)
    )
    facts, mark = (base64.b64encode(each).decode() for each in (card.payload, signature))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="640" height="280">
<metadata id="p2ptrain-card">{facts} {mark}</metadata>
<style>text{{font-family:sans-serif;fill:#1b2733}}.name{{font-size:26px;font-weight:bold}}\
.run{{font-size:18px}}.fact{{font-size:18px}}.how{{font-size:13px;fill:#51606e}}</style>
<rect width="640" height="280" rx="16" fill="#f4f7fa" stroke="#2a6f97" stroke-width="3"/>
<text x="32" y="52" class="name">{name}</text>
<text x="32" y="82" class="run">{run}</text>
{rows}
<text x="32" y="258" class="how">Check it: p2ptrain me --verify FILE, in a home of this run</text>
</svg>
"""
