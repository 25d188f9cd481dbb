"""The head of the ledger, signed by the node that writes the report.

A reader of a web site has no ledger, so the site cannot prove its numbers. The signed head names
the node that vouches for them, and everybody who follows the ledger can compare them:
`p2ptrain watch` prints the head of each outer step, and `p2ptrain report --check FILE` checks the
signature.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.run import Signed
from p2ptrain.run.reading import from_plain, plain

KIND = "site-head"
BYTES_MAX = 4096
COUNT_MAX = 2**53

HOW = (
    "`signed` is a document of p2ptrain (msgpack, Ed25519) in base64, with the other fields. To "
    "check it: p2ptrain report --check head.json. To compare it with the ledger itself: p2ptrain "
    "watch INVITE --from STEP --json, and look for the same head."
)


@dataclass(frozen=True, slots=True)
class SiteHead:
    """The newest entry that the signer has: after the entry at `height`, whose digest is `head`,
    the outer step in progress is `step`, and `tokens` are certified."""

    run: RunId
    height: int
    head: Digest
    step: int
    tokens: int
    created_unix: int

    def __post_init__(self) -> None:
        if not (is_digest(self.run) and is_digest(self.head)):
            raise ValueError("run or head is not a digest")
        counts = (self.height, self.step, self.tokens, self.created_unix)
        if not all(0 <= each <= COUNT_MAX for each in counts):
            raise ValueError("a count is out of range")

    def to_json(self, identity: Identity) -> str:
        """Return the text of the file, signed by `identity`."""
        signed = Signed.by(identity, KIND, pack(plain(self))).to_bytes()
        facts = {"schema": 1, **asdict(self), "peer": identity.peer}
        text = base64.b64encode(signed).decode()
        return json.dumps({**facts, "signed": text, "how_to_check": HOW}, indent=2) + "\n"


def read_head(text: str) -> tuple[PeerId, SiteHead]:
    """Return the signer and the head in a file that `SiteHead.to_json` wrote.

    Raises RemoteProtocolError: the file is malformed, or the signature is wrong, or the readable
    fields are not the signed ones.
    """
    try:
        told = json.loads(text)
        data = base64.b64decode(str(told["signed"]), validate=True)
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as exc:
        raise RemoteProtocolError("this is not a signed head") from exc
    signed = Signed.from_bytes(data, kind=KIND, bytes_max=BYTES_MAX)
    head = from_plain(SiteHead, unpack(signed.payload, bytes_max=BYTES_MAX), "a signed head")
    readable = {name: told.get(name) for name in (*asdict(head), "peer")}
    if readable != {**asdict(head), "peer": signed.signer}:
        raise RemoteProtocolError("the readable fields are not those that were signed")
    return signed.signer, head
