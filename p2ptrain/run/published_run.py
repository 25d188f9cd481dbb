"""A run: its manifest with the publisher's signature, and which keys sign for the organisers now.

The manifest names the organisers, and hand-overs (`hand_over`) replace their keys. The run's id
does not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from blake3 import blake3

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId
from p2ptrain.names import label
from p2ptrain.run.envelope import Signed
from p2ptrain.run.hand_over import HAND_OVERS_MAX, SignedHandOver
from p2ptrain.run.manifest import KIND, SIGNED_BYTES_MAX, RunManifest


@dataclass(frozen=True, slots=True)
class Run:
    """A manifest with its organiser's signature, as stored in `run/manifest.signed` in a node's
    home (the folder with its files).

    Create a Run with `publish` or `from_bytes`, which guarantee that `manifest` is what was signed.
    """

    id: RunId
    manifest: RunManifest
    signed: Signed
    hand_overs: tuple[SignedHandOver, ...] = ()
    """The valid hand-overs that this node has, in the order in which they apply."""

    @classmethod
    def publish(cls, identity: Identity, manifest: RunManifest) -> Run:
        """Sign `manifest` with `identity`, which must be its organiser."""
        assert manifest.organiser == identity.peer
        return cls._of(Signed.by(identity, KIND, manifest.to_payload()))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Run:
        """Return the run in `data`, which may come from any peer.

        Raises:
            VersionMismatch: it is for a different version of p2ptrain.
            RemoteProtocolError: it is too long, truncated, altered, not signed by its organiser, or
                invalid.
        """
        return cls._of(Signed.from_bytes(data, kind=KIND, bytes_max=SIGNED_BYTES_MAX))

    @classmethod
    def _of(cls, signed: Signed) -> Run:
        manifest = RunManifest.from_payload(signed.payload)
        if manifest.organiser != signed.signer:
            raise RemoteProtocolError(
                f"the run {manifest.name!r} names {label(manifest.organiser)} as its organiser "
                f"but is signed by {label(signed.signer)}",
                code="SIGNATURE",
            )
        return cls(RunId(blake3(signed.payload).hexdigest()), manifest, signed)

    def to_bytes(self) -> bytes:
        return self.signed.to_bytes()

    @property
    def organisers(self) -> tuple[PeerId, ...]:
        """The keys that sign for the organisers now, in the order of the manifest."""
        successors = {each.hand_over.old: each.hand_over.new for each in self.hand_overs}
        keys = list[PeerId]()
        for key in self.manifest.organiser_keys:
            while key in successors:
                key = successors[key]
            keys.append(key)
        return tuple(keys)

    def seat_of(self, key: PeerId) -> PeerId:
        """Return the organiser's key in the manifest that `key` has replaced, or `key` itself. An
        organiser that signs with two keys counts once."""
        origins = {each.hand_over.new: each.hand_over.old for each in self.hand_overs}
        while key in origins:
            key = origins[key]
        return key

    def may_sign(self, key: PeerId, *, sequence: int | None, amendment: int | None) -> bool:
        """Return whether `key` may sign the allowlist with number `sequence`, the amendment with
        number `amendment`, or another document if both are None."""
        if key in self.organisers:
            return True
        for each in self.hand_overs:
            if each.hand_over.old == key:
                is_old_list = sequence is not None and sequence < each.hand_over.first_list
                first = each.hand_over.first_amendment
                return is_old_list or (amendment is not None and amendment < first)
        return False

    def with_hand_overs(self, offered: Iterable[SignedHandOver]) -> Run:
        """Return the run with those of `offered` that are valid after the hand-overs that it has.
        The first hand-over of a key stays."""
        run = self
        for each in sorted(offered, key=lambda each: (each.hand_over.number, each.signed.digest)):
            if run._accepts(each):
                run = replace(run, hand_overs=(*run.hand_overs, each))
        return run

    def _accepts(self, offered: SignedHandOver) -> bool:
        keys, said = self.organisers, offered.hand_over
        used = {*self.manifest.organiser_keys, *(each.hand_over.new for each in self.hand_overs)}
        signers = set(offered.signed.signers)
        return (
            said.run == self.id
            and len(self.hand_overs) < HAND_OVERS_MAX
            and said.old in keys
            and said.new not in used
            and signers <= set(keys)
            and len(signers) >= self.manifest.organisers.signatures_min
        )
