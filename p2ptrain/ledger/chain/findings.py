"""The values about audits: findings, verdicts, and what the state remembers of them.

A *finding* is an auditor's signed statement about one claim in a committed update (SPEC.md, A3). A
*verdict* is an entry with enough findings to exclude peers from averages, or to end an exclusion.
`audits` says which auditors are drawn, and which findings are enough.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from p2ptrain.ids import Digest, PeerId, is_digest

Found = Literal["proof", "link", "outcome", "withheld", "sound"]
"""The result of an audit: a number beyond its limit in the proof at θ, in a repeated link of the
chain of checkpoints or in the outcome; data that the claimant did not show; or no fault.
"""
FOUND: tuple[Found, ...] = get_args(Found)
FAULTS = frozenset(FOUND) - {"sound"}

VERDICT_FINDINGS_MAX = 64
"""Maximum number of findings in a verdict. Each takes about 400 bytes. If more peers are to be
judged, another verdict follows.
"""

AUDITORS_MAX = 64
"""Maximum number of auditors at a time. The work is shared among three for each claim, so more are
not needed. The state keeps their names for each recent Commit.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """`auditor` found `found` in the `claim` of `peer` for outer step `step`. `draw` is the digest
    of the entry that drew the auditor: the Commit with the claim, or the verdict that is appealed.
    The signature signs `audits.finding_message`.
    """

    auditor: PeerId
    peer: PeerId
    step: int
    draw: Digest
    claim: Digest
    found: Found
    signature: bytes

    def __post_init__(self) -> None:
        _check(self.auditor != self.peer, "a peer cannot audit itself")
        _check(self.step >= 0, "steps start at 0")
        _check(is_digest(self.draw) and is_digest(self.claim), "a finding must name two digests")
        _check(self.found in FOUND, f"a finding must be one of {', '.join(FOUND)}")

    @property
    def words(self) -> str:
        what = "is sound" if self.found == "sound" else f"has a fault ({self.found})"
        return f"{self.auditor}: claim {self.claim[:8]} of {self.peer}, step {self.step}, {what}"

    def plain(self) -> list[object]:
        signed = binascii.b2a_base64(self.signature, newline=False).decode("ascii")
        names: list[object] = [self.auditor, self.peer, self.step]
        return [*names, self.draw, self.claim, self.found, signed]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings that exclude some peers from averages, or that end exclusions. They are sorted
    by peer and auditor.
    """

    step: int
    findings: tuple[Finding, ...]
    peers: tuple[PeerId, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        pairs = [(it.peer, it.auditor) for it in self.findings]
        _check(self.step >= 0, "steps start at 0")
        _check(0 < len(pairs) <= VERDICT_FINDINGS_MAX, "a verdict has too many findings, or none")
        _check(pairs == sorted(set(pairs)), "findings must be sorted, one per peer and auditor")
        object.__setattr__(self, "peers", tuple(dict.fromkeys(peer for peer, _ in pairs)))

    def about(self, peer: PeerId) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.peer == peer)

    def plain(self) -> dict[str, object]:
        findings = [each.plain() for each in self.findings]
        return {"kind": "verdict", "step": self.step, "findings": findings}


@dataclass(frozen=True, slots=True)
class Audit:
    """The claims in the update of outer step `step` that no verdict has judged yet. `draw` is the
    digest of its Commit, and `auditors` are those at that time.
    """

    step: int
    draw: Digest
    claims: Mapping[PeerId, Digest]
    auditors: tuple[PeerId, ...]

    def plain(self) -> list[object]:
        return [self.step, self.draw, dict(self.claims), list(self.auditors)]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A peer takes part in averages again from outer step `until` on. `claim` is its claim for
    outer step `step`, in which auditors found a fault. `draw` is the digest of the verdict, and
    `judges` are the auditors that it drew for the appeal.
    """

    until: int
    step: int
    claim: Digest
    draw: Digest
    judges: tuple[PeerId, ...]

    def plain(self) -> list[object]:
        return [self.until, self.step, self.claim, self.draw, list(self.judges)]


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
