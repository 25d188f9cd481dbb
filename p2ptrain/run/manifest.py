"""The run manifest: everything that peers must agree on. Its digest is the run's id.

    model, tokenizer, data     the model, and the data to train on
    inner, outer, sync, codec  each peer's training; the averaging, its timing and its encoding
    policy                     quorum, timeouts, snapshots
    genesis, layout            the digests of the first θ and m, and of the parameter layout
    founders, admission        the first voters, and the peers that may take part
    organisers                 further organisers, and how many of them must sign a document
    about, public, samples     optional: for people outside the run (see `outside_facts`)
    trust                      optional: how contributions are checked (see `trust_rules`)

The run's id is enough to verify a manifest from any source, because it is the manifest's digest.
The organiser's signature tells volunteers whose run they are helping.

A manifest from a peer may be malicious, like any message. So every limit here is low enough that a
manifest within the limits cannot break a node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId, is_digest
from p2ptrain.ipc.frames import BLOCKS_MAX
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec
from p2ptrain.ledger.chain.leases import LEASES_HELD_MAX
from p2ptrain.run.co_organisers import NO_CO_ORGANISERS, CoOrganisers
from p2ptrain.run.envelope import ENVELOPE_BYTES_MAX
from p2ptrain.run.outside_facts import (
    NO_SAMPLES,
    NOTHING_PUBLIC,
    NOTHING_SAID,
    About,
    Public,
    SamplePrompts,
)
from p2ptrain.run.reading import from_plain, plain
from p2ptrain.run.trust_rules import LATER_FIELDS, NOTHING_CHECKED, TrustRules
from p2ptrain.run.versions import MERGE, VERSION, VERSIONS, check_version, without_merge
from p2ptrain.store.blob import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from p2ptrain.sync import SyncSchedule, SyncSpec

KIND = "manifest"
MANIFEST_BYTES_MAX = 64 * 1024
SIGNED_BYTES_MAX = MANIFEST_BYTES_MAX + ENVELOPE_BYTES_MAX
FOUNDERS_MAX = 256
COUNT_MAX = 2**48
"""Maximum of every count in a manifest, so that the product of two counts fits into 128 bits and a
float's range."""

SECONDS_MAX = 86_400.0
PARAMETERS_MAX = 2**40
INFLUENCE_MAX = 2.0**100
"""Maximum value of `RunManifest.influence_max`. Codecs do not accept larger magnitudes."""
LAYERS_MAX = 4096
SEQUENCE_MAX = 2**24
"""Maximum number of layers, and maximum length of a sequence. They bound tables that are allocated
before training starts."""

LEASE_BLOCKS_MAX = BLOCKS_MAX // LEASES_HELD_MAX
"""Maximum number of blocks in a lease (the blocks that a member may train on in one outer step). A
member may hold `LEASES_HELD_MAX` leases, and one frame to its trainer lists all their blocks. The
longest H in use is 2,000."""

BLOCK_MIN = 32
"""Minimum length of a codec block. Each block has a scale; in shorter blocks, the scales would take
too large a share of the bytes."""
BLOCK_MAX = 4096
"""Maximum length of a codec block that the kernels accept."""

Quorum = Literal["majority", "two-thirds"]
QuorumLoss = Literal["wait", "branch"]
CodecName = Literal["fp32", "fp16", "int8", "int4"]
Admission = Literal["open", "allowlist"]
Encryption = Literal["tls", "none"]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def _require(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} is {str(value)[:80]!r}")


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The data: an index of block digests, training blocks first. See `DataIndex`.

    A document begins at each `document_token`, and attention does not cross that border. If
    `document_token` is None, attention is not masked between documents.
    """

    index: Digest
    train_blocks: int
    validation_blocks: int
    block_tokens: int
    document_token: int | None = None

    def __post_init__(self) -> None:
        _require(is_digest(self.index), "data.index", self.index)
        for name in ("train_blocks", "validation_blocks", "block_tokens"):
            _require(0 < getattr(self, name) <= COUNT_MAX, f"data.{name}", getattr(self, name))
        mark = self.document_token
        _require(mark is None or mark >= 0, "data.document_token", mark)


@dataclass(frozen=True, slots=True)
class OuterSpec:
    """The outer optimizer (Nesterov momentum), and the number of outer steps of the run."""

    lr: float
    momentum: float
    steps: int

    def __post_init__(self) -> None:
        _require(math.isfinite(self.lr) and 0 < self.lr <= 100, "outer.lr", self.lr)
        _require(0 <= self.momentum < 1, "outer.momentum", self.momentum)
        _require(0 < self.steps <= COUNT_MAX, "outer.steps", self.steps)


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The encoding in which peers send the changes of their weights: `block` elements share one
    scale.

    With `feedback`, every peer adds the error of rounding its contribution to its next
    contribution.
    """

    name: CodecName
    block: int
    feedback: bool = False

    def __post_init__(self) -> None:
        _require(self.name in get_args(CodecName), "codec.name", self.name)
        _require(BLOCK_MIN <= self.block <= BLOCK_MAX, "codec.block", self.block)


@dataclass(frozen=True, slots=True)
class Policy:
    """How members decide, and what else all of them must do in the same way.

    `snapshot_every` and `evaluate_every` count outer steps. `chunk_bytes` is the chunk length of
    updates and snapshots; it is part of the manifest, so that all peers get the same digests.
    `encryption` applies to bulk data; "none" is for a private network that all members trust. If
    the quorum is lost for `branch_after_s` and `quorum_loss` is "branch", the remaining voters
    continue in a branch (a separate continuation of the ledger).

    `influence_max` bounds how far each element of a participant's weights may be from θ. Its unit
    is H times the peak learning rate. With betas of 0.9 and 0.95, a step of AdamW moves a weight by
    at most 1.2 times the learning rate (in small models, the mean over an outer step reached 1.1).
    The default of 10 leaves room for the work of several outer steps at once.
    """

    quorum: Quorum
    quorum_loss: QuorumLoss
    grace_s: float
    round_timeout_s: float
    patience_s: float
    attempts_max: int
    participants_min: int
    snapshot_every: int
    evaluate_every: int
    chunk_bytes: int
    encryption: Encryption = "tls"
    branch_after_s: float = 600.0
    influence_max: float = 10.0

    def __post_init__(self) -> None:
        _require(self.quorum in get_args(Quorum), "policy.quorum", self.quorum)
        _require(self.quorum_loss in get_args(QuorumLoss), "policy.quorum_loss", self.quorum_loss)
        _require(self.encryption in get_args(Encryption), "policy.encryption", self.encryption)
        counts = ("attempts_max", "participants_min", "snapshot_every", "evaluate_every")
        bounds = {
            "grace_s": (0, SECONDS_MAX),
            "patience_s": (0, SECONDS_MAX),
            "round_timeout_s": (0.01, SECONDS_MAX),
            "branch_after_s": (1, SECONDS_MAX),
            "chunk_bytes": (CHUNK_BYTES_MIN, CHUNK_BYTES_MAX),
            **dict.fromkeys(counts, (1, COUNT_MAX)),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            _require(least <= value <= most, f"policy.{name}", value)


_OUTSIDE_LAYERS = 2
"""Number of matrices of an untied model that do not belong to a layer: embedding and head."""


@dataclass(frozen=True, slots=True)
class RunManifest:
    """One run, as its organiser defined it.

    `inner.steps` (H) is the number of inner steps between two averages of the same fragment (the
    part of the parameters that one outer step averages). `outer.steps` counts the averages of all
    fragments.
    """

    name: str
    organiser: PeerId
    created_unix: int
    model: ModelSpec
    tokenizer: Digest
    data: DataSpec
    inner: InnerSpec
    outer: OuterSpec
    sync: SyncSpec
    codec: CodecSpec
    policy: Policy
    genesis: Digest
    layout: Digest
    founders: tuple[PeerId, ...]
    admission: Admission
    version: int = VERSION
    organisers: CoOrganisers = NO_CO_ORGANISERS
    about: About = NOTHING_SAID
    public: Public = NOTHING_PUBLIC
    samples: SamplePrompts = NO_SAMPLES
    trust: TrustRules = NOTHING_CHECKED

    def __post_init__(self) -> None:
        _require(self.version in VERSIONS, "version", self.version)
        _require(bool(_NAME.fullmatch(self.name)), "name", self.name)
        _require(is_peer_id(self.organiser), "organiser", self.organiser)
        _require(0 <= self.created_unix <= COUNT_MAX, "created_unix", self.created_unix)
        for name in ("tokenizer", "genesis", "layout"):
            _require(is_digest(getattr(self, name)), name, getattr(self, name))
        _require(0 < len(self.founders) <= FOUNDERS_MAX, "founders", len(self.founders))
        for founder in self.founders:
            _require(is_peer_id(founder), "founders", founder)
        _require(len(set(self.founders)) == len(self.founders), "founders", "one is listed twice")
        _require(self.admission in get_args(Admission), "admission", self.admission)
        others = self.organisers.peers
        _require(self.organiser not in others, "organisers", "the publisher is listed again")
        _require(self.model.layers <= LAYERS_MAX, "model.layers", self.model.layers)
        _require(self.model.sequence <= SEQUENCE_MAX, "model.sequence", self.model.sequence)
        _require(_parameters_at_least(self.model) <= PARAMETERS_MAX, "model", self.model)
        _require(self.inner.steps <= self.data.train_blocks, "inner.steps", self.inner.steps)
        bound = self.influence_max
        _require(0 < bound <= INFLUENCE_MAX, "policy.influence_max", bound)
        self._check_sync()
        block_tokens = self.inner.batch_sequences * self.model.sequence
        _require(block_tokens == self.data.block_tokens, "data.block_tokens", block_tokens)
        mark = self.data.document_token
        _require(mark is None or mark < self.model.vocab, "data.document_token", mark)

    def _check_sync(self) -> None:
        sync, outside = self.sync, 1 if self.model.tied else _OUTSIDE_LAYERS
        fits = sync.fragments == 1 or 1 <= sync.fragments - outside <= self.model.layers
        _require(fits, "sync.fragments", sync.fragments)
        stride, over = divmod(self.inner.steps, sync.fragments)
        _require(over == 0 and sync.overlap_steps <= stride, "sync", sync)
        if self.blocks_per_lease > LEASE_BLOCKS_MAX:
            raise ValueError(
                f"inner.steps {self.inner.steps} ÷ sync.fragments {sync.fragments} + "
                f"sync.overlap_steps {sync.overlap_steps} is {self.blocks_per_lease} data "
                f"blocks; a lease has at most {LEASE_BLOCKS_MAX}"
            )
        _require(sync.mixing == 0 or not self.delayed, "sync.mixing", sync.mixing)
        _require(self.delayed or not sync.eager, "sync.eager", sync.eager)
        # Residuals are added during a reduce, so other peers could not recompute its update.
        both = self.trust.claims and self.codec.feedback
        _require(not both, "trust.claims", "true, but codec.feedback is true")

    @property
    def founders_vote(self) -> bool:
        """Whether only founders vote. In an open run anybody can create identities at no cost, so
        new identities must not get votes. Runs of version 1 use the old rules."""
        return self.admission == "open" and self.version >= 2

    @property
    def organiser_keys(self) -> tuple[PeerId, ...]:
        """The publisher and the co-organisers."""
        return (self.organiser, *self.organisers.peers)

    @property
    def encrypted(self) -> bool:
        """Whether bulk data between peers is encrypted."""
        return self.policy.encryption == "tls"

    @property
    def influence_max(self) -> float:
        """The maximum distance of an element of a participant's weights from θ. See `Policy`."""
        return self.policy.influence_max * self.inner.lr * self.inner.steps

    @property
    def delayed(self) -> bool:
        """Whether each outer step is averaged while the next one is trained, so that the average
        arrives a whole outer step late."""
        return SyncSchedule.of(self.sync, self.inner.steps).delayed

    @property
    def blocks_per_step(self) -> int:
        """Number of data blocks that one member trains on in an outer step. A block is the batch
        of one inner step."""
        return self.inner.steps // self.sync.fragments

    @property
    def blocks_per_lease(self) -> int:
        """Number of data blocks in a lease: those of an outer step, plus those that the member
        trains on during the exchange (`overlap_steps`)."""
        return self.blocks_per_step + self.sync.overlap_steps

    def to_payload(self) -> bytes:
        """Return the canonical bytes. Their digest is the run id."""
        sections = {name: plain(getattr(self, name)) for name in _SECTIONS}
        value = {**plain(self), **sections, "trust": plain(self.trust, optional=LATER_FIELDS)}
        for name, usual in _OPTIONAL.items():
            if value[name] == usual:
                del value[name]  # Manifests of earlier versions do not have this section.
        return pack({**value, "sync": {**plain(self.sync), "merge": MERGE}})

    @classmethod
    def from_payload(cls, payload: bytes) -> RunManifest:
        """Return the manifest in `payload`, which may come from any peer.

        Raises:
            VersionMismatch: it is for a different version of p2ptrain, or sets "rda" (see
                `versions`).
            RemoteProtocolError: it is invalid for any other reason.
        """
        value = unpack(payload, bytes_max=MANIFEST_BYTES_MAX)
        if not isinstance(value, dict):
            raise RemoteProtocolError("a run manifest is a map")
        check_version(value.get("version"))
        value["sync"] = without_merge(value.get("sync"))
        for name, usual in _OPTIONAL.items():
            if value.get(name) == usual:
                raise RemoteProtocolError(f"the run manifest's field {name} says nothing")
            value.setdefault(name, usual)
        sections: dict[str, object] = {
            name: from_plain(kind, value.get(name), f"the run manifest's {name}", optional=later)
            for name, kind, later in _sections()
        }
        value = fields(value, **_FIELDS)
        founders = value["founders"]
        assert isinstance(founders, list)
        try:
            return cls(**(value | sections | {"founders": tuple(founders)}))  # type: ignore[arg-type]
        except (ValueError, TypeError) as exc:
            raise RemoteProtocolError(f"the run manifest's {exc}") from exc


_OPTIONAL = {
    "organisers": plain(NO_CO_ORGANISERS),
    "about": plain(NOTHING_SAID),
    "public": plain(NOTHING_PUBLIC),
    "samples": plain(NO_SAMPLES),
    "trust": plain(NOTHING_CHECKED, optional=LATER_FIELDS),
}
"""The sections that a manifest leaves out if they have these values."""
_SECTIONS: dict[str, type] = {
    "model": ModelSpec,
    "data": DataSpec,
    "inner": InnerSpec,
    "outer": OuterSpec,
    "sync": SyncSpec,
    "codec": CodecSpec,
    "policy": Policy,
    "organisers": CoOrganisers,
    "about": About,
    "public": Public,
    "samples": SamplePrompts,
    "trust": TrustRules,
}


def _sections() -> Iterator[tuple[str, type, tuple[str, ...]]]:
    """Yield the name and type of each section, and the fields that it may leave out."""
    yield from ((name, kind, LATER_FIELDS * (name == "trust")) for name, kind in _SECTIONS.items())


_FIELDS: dict[str, type] = {
    **dict.fromkeys(_SECTIONS, dict),
    **dict.fromkeys(("name", "organiser", "tokenizer", "genesis", "layout", "admission"), str),
    **dict.fromkeys(("created_unix", "version"), int),
    "founders": list,
}


def _parameters_at_least(model: ModelSpec) -> int:
    """Return a lower bound on the number of parameters, to refuse absurd sizes. It counts only the
    large matrices."""
    attention = 2 * model.width * model.width
    return model.vocab * model.width + model.layers * (attention + 3 * model.width * model.ffn)
