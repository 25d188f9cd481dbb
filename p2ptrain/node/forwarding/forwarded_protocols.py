"""The protocols whose requests members pass on, and the limits of each.

There are eight. Votes need the ledger's protocol, and a connection for bulk data needs the other
three that a visitor may use too. A joiner asks a donor for its inner optimizer, because in a run of
people at home, the only member that it is connected to may be a seed, which has none. A claim is
shown by its own peer only, and participants of a reduce swap claims and sketches directly. Only the
receiver of a signed sum keeps it. Every other question can be put to a connected member, so it is
never passed on.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane.punch_messages import MESSAGE_BYTES_MAX as PUNCH_BYTES_MAX
from p2ptrain.peers.forwarded_messages import PAYLOAD_BYTES_MAX
from p2ptrain.peers.protocol_names import (
    CLAIM_ASK_BYTES_MAX,
    CLAIM_PROTOCOL,
    ENDPOINT_BYTES_MAX,
    ENDPOINT_PROTOCOL,
    INNER_ASK_BYTES_MAX,
    INNER_PROTOCOL,
    LEDGER_PROTOCOL,
    PUNCH_PROTOCOL,
    RELAY_PROTOCOL,
    SKETCH_PROTOCOL,
    SUMS_PROTOCOL,
)
from p2ptrain.peers.relay_messages import MEET_BYTES_MAX
from p2ptrain.proofs.signed_sums import REQUEST_BYTES_MAX as SUMS_ASK_BYTES_MAX
from p2ptrain.proofs.sketch_messages import REQUEST_BYTES_MAX


@dataclass(frozen=True, slots=True)
class PassingOn:
    """Limits for the requests of one protocol.

    `request_bytes_max` is the maximum size of a request. If `for_visitors`, requests are also
    passed on between a member and a visitor. If `is_rare`, they have a lower rate limit besides the
    one that all requests of a sender share. If `with_address`, the forwarder states the address at
    which it sees the sender. Other protocols do not need that, and earlier versions do not accept
    it.
    """

    request_bytes_max: int
    for_visitors: bool = False
    is_rare: bool = False
    with_address: bool = False


FORWARDED = {
    LEDGER_PROTOCOL: PassingOn(PAYLOAD_BYTES_MAX),
    ENDPOINT_PROTOCOL: PassingOn(ENDPOINT_BYTES_MAX, for_visitors=True),
    PUNCH_PROTOCOL: PassingOn(PUNCH_BYTES_MAX, for_visitors=True, with_address=True),
    RELAY_PROTOCOL: PassingOn(MEET_BYTES_MAX, for_visitors=True, is_rare=True, with_address=True),
    INNER_PROTOCOL: PassingOn(INNER_ASK_BYTES_MAX, is_rare=True),
    CLAIM_PROTOCOL: PassingOn(CLAIM_ASK_BYTES_MAX),
    SKETCH_PROTOCOL: PassingOn(REQUEST_BYTES_MAX),
    SUMS_PROTOCOL: PassingOn(SUMS_ASK_BYTES_MAX, is_rare=True),
}
