"""A pytest plugin that fills the corpus with the inputs that tests give to the decoders.

python -m pytest -p tests.fuzz.recording tests/ledger tests/node tests/net tests/run tests/ring

Real nodes and hostile peers communicate in these tests, so the corpus has valid and invalid
examples of each kind of input. At most `EXAMPLES_MAX` short examples of each kind are kept. The
plugin is a profiler that sees every call, so the tests take several times as long as usual.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from p2ptrain.archive import chain_log
from p2ptrain.dataplane import certificates
from p2ptrain.encoding import pack
from p2ptrain.ipc import slices
from p2ptrain.ipc import wire as trainer_wire
from p2ptrain.ledger.chain import canonical
from p2ptrain.ledger.history import base, decode_state
from p2ptrain.ledger.messages import evidence
from p2ptrain.ledger.messages import wire as ledger_wire
from p2ptrain.net import addresses, kad
from p2ptrain.peers import heartbeat, heartbeat_delta, hello_messages
from p2ptrain.ring import wire as ring_wire
from p2ptrain.run import data_index
from p2ptrain.run.envelope import Signed
from p2ptrain.state.layout import Layout
from p2ptrain.store.blob import BlobManifest

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES_MAX = 6
BYTES_MAX = 1500
"""Maximum length of a recorded example. Longer examples are not worth their space in the
repository."""

Names = Callable[[dict[str, Any]], list[tuple[str, bytes]]]


def _argument(target: str, name: str) -> Names:
    return lambda values: [(target, bytes(values[name]))]


def _document(values: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Return a signed document as it is sent, and its payload."""
    document = values["self"]
    kinds = {"inner-state": "donation-offer"}
    whole = {"kind": document.kind, "payload": document.payload, "signer": document.signer}
    whole["signature"] = document.signature
    kind = kinds.get(document.kind, document.kind)
    return [("envelope", pack(whole)), (kind, document.payload)]


def code_of(method: Any) -> CodeType:
    """Return the code of a class method."""
    code: CodeType = method.__func__.__code__
    return code


DECODERS: dict[CodeType, Names] = {  # by code object, since that is what the profiler sees
    ledger_wire.decode.__code__: _argument("ledger-message", "data"),
    evidence.decode_evidence.__code__: _argument("ledger-evidence", "data"),
    base.decode_base.__code__: _argument("ledger-base", "data"),
    decode_state.decode_state.__code__: _argument("ledger-state", "data"),
    canonical.parse.__code__: _argument("ledger-canonical", "data"),
    chain_log.entry_of.__code__: _argument("ledger-chain", "record"),
    heartbeat.decode.__code__: _argument("heartbeat", "data"),
    heartbeat_delta.decode_beat.__code__: _argument("beat", "payload"),
    hello_messages.decode_request.__code__: _argument("hello-request", "data"),
    hello_messages.decode_reply.__code__: _argument("hello-reply", "data"),
    Signed.__post_init__.__code__: _document,
    code_of(data_index.DataIndex.from_bytes): _argument("data-index", "data"),
    kad.KadServer.answer.__code__: _argument("dht-request", "request"),
    kad.providers_in.__code__: _argument("dht-reply", "reply"),
    addresses.parse.__code__: lambda values: [("addresses", values["text"].encode())],
    certificates.peer_of_certificate.__wrapped__.__code__: _argument("certificate", "der"),
    ring_wire.decode_header.__code__: _argument("ring-header", "data"),
    ring_wire.decode_blame.__code__: _argument("ring-blame", "data"),
    code_of(BlobManifest.from_wire): _argument("blob-manifest", "data"),
    code_of(Layout.from_wire): _argument("layout", "data"),
    trainer_wire.FrameReader.feed.__code__: _argument("trainer-frame", "data"),
    slices.decode.__code__: _argument("rank-message", "body"),
}

_kept: Counter[str] = Counter()


def _record(frame: FrameType, event: str, argument: object) -> None:
    names = DECODERS.get(frame.f_code) if event == "call" else None
    if names is None:
        return
    for target, data in names(frame.f_locals):
        if len(data) <= BYTES_MAX and _kept[target] < EXAMPLES_MAX:
            path = CORPUS / target / hashlib.blake2b(data, digest_size=6).hexdigest()
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                _kept[target] += 1


def pytest_sessionstart() -> None:
    sys.setprofile(_record)
    threading.setprofile(_record)
