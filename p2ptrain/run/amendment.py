"""A change to a run in progress: new values for some of the manifest's settings, from a given outer
step on. The run's organiser numbers and signs each amendment.

An amendment does not take effect by itself: members must agree on it in their ledger before the
outer step that it names. From that step on, the amended manifest applies. The outer steps from one
amendment to the next are a `Leg` of the run; one manifest applies to all of them. This module does
not know how amendments are sent, or which of them were agreed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

from blake3 import blake3

from p2ptrain.encoding import pack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity, is_peer_id
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.values import DELEGATES_MAX, Terms
from p2ptrain.names import label
from p2ptrain.run.envelope import COSIGNATURES_BYTES_MAX, Signed
from p2ptrain.run.manifest import BLOCK_MAX, BLOCK_MIN, INFLUENCE_MAX, CodecName, RunManifest
from p2ptrain.run.organiser import said_by_organiser
from p2ptrain.run.published_run import Run
from p2ptrain.run.reading import plain

KIND = "amendment"
AMENDMENT_BYTES_MAX = 2560 + COSIGNATURES_BYTES_MAX
"""Maximum length of a signed amendment. Typical ones have about 500 bytes, and one with two lists
of 16 delegates has 2,250. The limit is low so that lists of amendments are cheap to send."""

NUMBER_MAX = 2**53
_OPTIONAL = ("admitters", "voters", "stop")
"""Fields that an amendment leaves out if it does not change them, as in earlier versions."""

STOP_CHARACTERS_MAX = 200
"""Maximum length of the reason for which a run ends. Every node shows it in one line."""

RATE_MAX = 100.0
"""Maximum learning rate. Our optimizers fail to learn even at a tenth of it."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """Amendment `number` of `run`, which applies from outer step `step` on. A setting that is None
    does not change.

    `lr` is the peak of the inner learning rate, `inner_steps` is H (inner steps for each average),
    and `codec_block` is the codec's block length.
    """

    run: RunId
    number: int
    step: int
    lr: float | None = None
    inner_steps: int | None = None
    codec: str | None = None
    codec_block: int | None = None
    outer_lr: float | None = None
    outer_momentum: float | None = None
    admitters: tuple[PeerId, ...] | None = None
    """The complete list of the members that may admit volunteers from `step` on, sorted."""
    voters: tuple[PeerId, ...] | None = None
    """The complete list of the peers that may vote from `step` on in addition to the founders of an
    open run, sorted. They vote once they have taken part in a committed outer step."""
    stop: str | None = None
    """Why the run ends before outer step `step`: from then on, nobody trains."""

    def __post_init__(self) -> None:
        numbers = f"1 to {NUMBER_MAX}"
        _require(0 < self.number <= NUMBER_MAX, "number", self.number, numbers)
        _require(0 < self.step <= NUMBER_MAX, "outer step", self.step, numbers)
        for name in ("lr", "outer_lr"):
            rate = getattr(self, name)
            fits = rate is None or (math.isfinite(rate) and 0 < rate <= RATE_MAX)
            _require(fits, name, rate, f"above 0 and at most {RATE_MAX:g}")
        steps, momentum, block = self.inner_steps, self.outer_momentum, self.codec_block
        _require(steps is None or steps > 0, "inner_steps", steps, "1 or more")
        fits = momentum is None or 0 <= momentum < 1
        _require(fits, "outer_momentum", momentum, "at least 0 and below 1")
        codecs = get_args(CodecName)
        _require(self.codec in (None, *codecs), "codec", self.codec, f"one of {', '.join(codecs)}")
        fits = block is None or BLOCK_MIN <= block <= BLOCK_MAX
        _require(fits, "codec_block", block, f"{BLOCK_MIN} to {BLOCK_MAX}")
        for name in ("admitters", "voters"):
            _check_delegates(name, getattr(self, name))
        reason = self.stop
        fits = reason is None or (
            0 < len(reason) <= STOP_CHARACTERS_MAX and reason.isprintable() and bool(reason.strip())
        )
        _require(fits, "stop", reason, f"one line of at most {STOP_CHARACTERS_MAX} characters")
        _require(bool(self.changes), "number of changes", 0, "at least 1")

    @property
    def changes(self) -> dict[str, object]:
        """The new values by name."""
        return {name: value for name in _WORDS if (value := getattr(self, name)) is not None}

    @property
    def does_more(self) -> bool:
        """Whether the amendment does something beside giving new values: it says who may decide for
        the organisers, or ends the run."""
        return self.stop is not None or self.admitters is not None or self.voters is not None

    @property
    def facts(self) -> dict[str, object]:
        """The amendment as a map for `--json`."""
        return {"number": self.number, "from_step": self.step, **self.changes}

    @property
    def words(self) -> str:
        """The amendment in words, for users."""
        said = ", ".join(f"{_WORDS[name]} {_shown(value)}" for name, value in self.changes.items())
        return f"{said} from outer step {self.step} on"

    def check(self, manifest: RunManifest) -> None:
        """Raise ValueError, with a message for the user, if the amendment is invalid for a run of
        this manifest, whatever the earlier amendments are."""
        last, steps = manifest.outer.steps - 1, self.inner_steps
        _require(self.step <= last, "outer step", self.step, f"at most {last}")
        is_open = manifest.founders_vote or self.voters is None
        _require(is_open, "voters", self.voters, "absent: members of this run earn their votes")
        named = set(self.voters or ()).intersection(manifest.founders)
        _require(not named, "voters", min(named, default=""), "no founder, since founders vote")
        blocks = manifest.data.train_blocks
        most = f"at most {blocks}, the number of data blocks"
        _require((steps or 0) <= blocks, "inner_steps", steps, most)
        whole = Leg(manifest).amended(self).manifest
        same = f"{manifest.inner.steps}: it cannot change in a run with delayed averaging"
        _require(whole.delayed == manifest.delayed, "inner_steps", steps, same)
        # Check with the largest learning rate and H that any amendment may set, so that an
        # amendment that is valid alone is valid in combination with others, too.
        unit = max(RATE_MAX, manifest.inner.lr) * blocks
        fits = manifest.policy.influence_max * unit <= INFLUENCE_MAX
        bound = f"at most {INFLUENCE_MAX / unit:.3g} in a run that is amended"
        _require(fits, "policy.influence_max", manifest.policy.influence_max, bound)


_WORDS = {
    "lr": "inner learning rate",
    "inner_steps": "inner steps",
    "codec": "codec",
    "codec_block": "codec block",
    "outer_lr": "outer learning rate",
    "outer_momentum": "outer momentum",
    "admitters": "peers that may admit volunteers",
    "voters": "peers with a delegated vote",
    "stop": "the run ends:",
}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " and ".join(map(label, value)) or "none"
    return str(value)


def _check_delegates(name: str, peers: tuple[PeerId, ...] | None) -> None:
    if peers is not None:
        fits = len(peers) <= DELEGATES_MAX and all(map(is_peer_id, peers))
        _require(fits, name, peers, f"at most {DELEGATES_MAX} peer ids")
        _require(list(peers) == sorted(set(peers)), name, peers, "sorted and unique")


@dataclass(frozen=True, slots=True)
class Leg:
    """The run from outer step `step` to the next amendment. `inner_step` is the number of inner
    steps before `step`."""

    manifest: RunManifest
    step: int = 0
    inner_step: int = 0
    number: int = 0
    """Number of the amendment with which the leg begins; 0 for the published manifest."""
    stride_before: int = 0
    """Inner steps per outer step when the run was published; 0 if the number has not changed."""
    admitters: tuple[PeerId, ...] = ()
    """The members that may admit volunteers: the newest list of the amendments so far."""
    stop: str = ""
    """Why the run has ended; empty if it goes on."""

    @property
    def published_stride(self) -> int:
        """Inner steps per outer step that the schedule of the inner learning rate assumes."""
        return self.stride_before or self.manifest.blocks_per_step

    def first_inner_step(self, step: int) -> int:
        """Return the number of inner steps before `step`, for a peer that took part from the
        start."""
        return self.inner_step + (step - self.step) * self.manifest.blocks_per_step

    def amended(self, amendment: Amendment) -> Leg:
        """Return the leg that begins with `amendment` and follows this leg.

        The schedule of the inner learning rate is tied to outer steps. If H changes, the inner
        steps of the schedule are scaled in proportion, so that the rate does not jump and the
        schedule still ends with the run.

        Raises ValueError: the result is not a valid run.
        """
        old, new = self.manifest, amendment
        inner = _given(lr=new.lr, steps=new.inner_steps)
        codec = _given(name=new.codec, block=new.codec_block)
        outer = _given(lr=new.outer_lr, momentum=new.outer_momentum)
        try:
            manifest = replace(
                old,
                inner=replace(old.inner, **inner),
                codec=replace(old.codec, **codec),
                outer=replace(old.outer, **outer),
            )
        except ConfigError as exc:
            raise ValueError(exc.what) from exc
        is_same = manifest.inner.steps == old.inner.steps
        stride = self.stride_before if is_same else self.published_stride
        admitters = self.admitters if new.admitters is None else new.admitters
        first = self.first_inner_step(new.step)
        stop = self.stop or new.stop or ""
        return Leg(manifest, new.step, first, new.number, stride, admitters, stop)


@dataclass(frozen=True, slots=True)
class SignedAmendment:
    """An amendment with its signature. The ledger refers to it by `digest`."""

    amendment: Amendment
    signed: Signed
    terms: Terms
    """The contents of the ledger entry with which members agree on the amendment."""

    @classmethod
    def publish(cls, identity: Identity, amendment: Amendment, run: Run) -> SignedAmendment:
        """Sign `amendment`. Raises ValueError, with a message for the user, if it is invalid for
        `run`."""
        amendment.check(run.manifest)
        payload = pack(plain(amendment, optional=_OPTIONAL))
        return cls._of(amendment, Signed.by(identity, KIND, payload), run)

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, run: Run, *, signatures_min: int | None = None
    ) -> SignedAmendment:
        """Return the amendment of `run` in `data`, which may come from any peer. `signatures_min`
        is by default the number that the manifest requires.

        Raises:
            RunMismatch: it is a valid amendment of another run.
            RemoteProtocolError: it is malformed, altered, too long, invalid, or not signed by
                enough of the run's organisers.
        """
        required = run.manifest.organisers.signatures_min
        amendment, signed = said_by_organiser(
            Amendment,
            data,
            run,
            kind=KIND,
            bytes_max=AMENDMENT_BYTES_MAX,
            code="AMEND-SIGNER",
            signatures_min=required if signatures_min is None else signatures_min,
            optional=_OPTIONAL,
        )
        try:
            amendment.check(run.manifest)
        except ValueError as exc:
            raise RemoteProtocolError(f"the amendment is invalid: its {exc}") from exc
        return cls._of(amendment, signed, run)

    @classmethod
    def _of(cls, amendment: Amendment, signed: Signed, run: Run) -> SignedAmendment:
        """Return the amendment with its terms. They contain the peers with a delegated vote. They
        also contain the new number of blocks in a lease (the blocks that a member may train on), if
        H changes. This number depends on no other amendment, because the manifest fixes fragments
        and overlap."""
        blocks = None
        if amendment.inner_steps is not None:
            blocks = Leg(run.manifest).amended(amendment).manifest.blocks_per_lease
        digest = Digest(blake3(signed.payload).hexdigest())
        ends = amendment.stop is not None
        terms = Terms(amendment.number, amendment.step, digest, blocks, amendment.voters, ends)
        return cls(amendment, signed, terms)

    @property
    def digest(self) -> Digest:
        return self.terms.digest

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _require(holds: bool, name: str, value: object, should: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {str(value)[:80]}; it should be {should}")
