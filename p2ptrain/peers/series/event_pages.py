"""Pages of events and samples that a member tells a newcomer, signed by that member.

An event is a kind, an outer step, a time and perhaps a peer: it has no text. A sample is a text
that a model wrote, as the teller has recorded it. Both are the teller's word only. The reader
checks what its own ledger can tell, and keeps them apart from what it has observed itself. This
module does not know who may ask or whom to ask. A request has the form of `history_pages`.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.encoding import count, pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId
from p2ptrain.observe.series.rows import EventRow, SampleRow, ToldEventRow, ToldSampleRow
from p2ptrain.observe.series.told import ABOUT_PEERS, SENTENCES
from p2ptrain.peers.outside.sample_text import shown
from p2ptrain.peers.series.signed_page import PageKind
from p2ptrain.peers.series.step_report import STEP_MAX
from p2ptrain.run.outside_facts import PROMPTS_MAX

EVENTS_MAX = 256
SAMPLES_MAX = 32
NAMES_MAX = EVENTS_MAX + SAMPLES_MAX
PAGE_BYTES_MAX = 3 << 16
"""Maximum size of a page in bytes. 32 samples of 1,000 characters take at most 130 kB, 256 events 8
kB, and the ids of all peers in them 16 kB."""

KIND = PageKind(
    "page of events",
    b"p2ptrain history events 1\0",
    PAGE_BYTES_MAX,
    {"names": NAMES_MAX, "events": EVENTS_MAX, "samples": SAMPLES_MAX},
)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events and samples of the outer steps that were asked for. Both may be empty."""

    events: tuple[ToldEventRow, ...] = ()
    samples: tuple[ToldSampleRow, ...] = ()


def encode_events(
    events: list[EventRow], samples: list[SampleRow], run: RunId, teller: Identity
) -> bytes:
    """Return a page with the signature of `teller`. Events of kinds that are not told are left
    out."""
    return KIND.signed(events_body(events, samples, run), teller)


def events_body(events: list[EventRow], samples: list[SampleRow], run: RunId) -> bytes:
    told = [each for each in events if each.kind in SENTENCES and _fits(each)][:EVENTS_MAX]
    texts = samples[:SAMPLES_MAX]
    named = {*(each.peer for each in told), *(each.peer for each in texts)}
    names = sorted(named - {""})
    places = {name: place for place, name in enumerate(names)}
    return pack(
        {
            "run": run,
            "names": names,
            "events": [
                [each.step, float(each.time), each.kind, places.get(each.peer)] for each in told
            ],
            "samples": [
                [each.step, each.prompt, places[each.peer], shown(each.text)] for each in texts
            ],
        }
    )


def _fits(event: EventRow) -> bool:
    """Return whether the event names a peer if and only if its kind is about a peer. An event such
    as "5 more peers joined" names none."""
    return bool(event.peer) == (event.kind in ABOUT_PEERS)


def decode_events(data: bytes, run: RunId, teller: PeerId) -> EventPage:
    """Decode a page that `teller` has signed. Its rows name `teller` in `told_by`.

    Raises RemoteProtocolError: the page is malformed, a value is out of bounds, the signature is
        wrong, or the page belongs to another run."""
    said = KIND.lists_in(data, run, teller)
    return EventPage(
        tuple(_event(values, said["names"], teller) for values in said["events"]),
        tuple(_sample(values, said["names"], teller) for values in said["samples"]),
    )


def _event(values: object, names: list[str], teller: PeerId) -> ToldEventRow:
    match values:
        case [int(step), float(time), str(kind), int() | None as place] if kind in SENTENCES:
            if (place is None) == (kind in ABOUT_PEERS):
                raise RemoteProtocolError("an event names a peer without reason, or none")
            peer = "" if place is None else KIND.peer_at(place, names)
            return ToldEventRow(count(step, STEP_MAX, "an event"), kind, peer, time, teller)
    raise RemoteProtocolError("a page of events has a malformed event")


def _sample(values: object, names: list[str], teller: PeerId) -> ToldSampleRow:
    match values:
        case [int(step), int(prompt), int(place), str(text)] if text == shown(text):
            where = count(step, STEP_MAX, "a sample"), count(prompt, PROMPTS_MAX - 1, "a sample")
            return ToldSampleRow(*where, KIND.peer_at(place, names), text, teller)
    raise RemoteProtocolError("a page of events has a malformed sample")
