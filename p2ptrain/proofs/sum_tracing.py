"""Find the peer that made a segment of an average wrong, from what the peers have signed.

The contributions say what every sum should have been. So a signed sum is wrong if its leaf differs
from the digest of the honest sum, and nobody needs the bytes of the sum itself. Follow the wrong
leaves from the owner of the part towards the contributions:

    the owner's mean is wrong  ->  which of the sums that were signed to it were wrong?
    none of them               ->  the owner lied: its mean does not follow from its inputs
    one of them                ->  ask its sender the same question

Each step goes to a peer that signed a wrong output. So a peer is named only if it signed a wrong
output *and* showed right inputs, and it chooses itself which inputs it shows. An honest peer that
used a wrong input has its sender's signature, since it would not have signed its own output
without. A peer that does not show its inputs is named too, but only as one that withholds them:
that may be an accident, and proves nothing.

Sans-IO: the caller asks the peers in `Trace.due`, and passes on what they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from blake3 import blake3

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.proofs.average import AverageTerms, Bytes, SegmentHops
from p2ptrain.proofs.signed_sums import SumStatement, verified
from p2ptrain.ring import Segment, SignedRun, plan
from p2ptrain.ring.request import SEGMENT_BYTES

Kind = Literal["lied", "withheld"]


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A segment, and its place in the run that one signature covers: number `index` of `segments`
    in the elements [start, stop)."""

    segment: Segment
    start: int
    stop: int
    segments: int

    @property
    def index(self) -> int:
        return self.segment.index

    def is_about(self, stated: SumStatement) -> bool:
        told = (stated.start, stated.stop, stated.segments)
        return told == (self.start, self.stop, self.segments)


def place_of(
    terms: AverageTerms, element: int, *, lanes: int = 1, segment_bytes: int = SEGMENT_BYTES
) -> SegmentPlace:
    """Return the segment that contains `element`. The other arguments are those of the reduce.
    Raises LocalProtocolError: there is no such element."""
    about = (terms.schedule, terms.peers, 0, terms.numel, terms.codec)
    for runs in plan(*about, lanes, segment_bytes).lanes:
        for run in runs:
            if run and run[0].start <= element < run[-1].stop:
                found = next(each for each in run if element < each.stop)
                return SegmentPlace(found, run[0].start, run[-1].stop, len(run))
    raise LocalProtocolError(f"there is no element {element}")


@dataclass(frozen=True, slots=True)
class Traced:
    """A peer, by its number, that is answerable for a wrong segment. `output` is what it signed,
    and `inputs` what was signed to it; both are evidence if it `lied`."""

    number: int
    kind: Kind
    what: str
    output: SignedRun
    inputs: tuple[SignedRun, ...] = ()


@dataclass(slots=True)
class Trace:
    """The search for the peers that made one segment of an average wrong.

    `contributions` and `update` are the bytes of this segment. First pass what participants show of
    the owner's mean to `take_mean`, until `is_begun`. Then ask the peers in `due` for their inputs.
    The result is in `found`.

    Raises NotAveraged: the contributions cannot be averaged.
    """

    terms: AverageTerms
    peers: Sequence[PeerId]
    roster: Digest
    place: SegmentPlace
    contributions: Sequence[Bytes]
    update: Bytes
    verify: Verify
    found: list[Traced] = field(default_factory=list)
    is_begun: bool = False
    _hops: SegmentHops = field(init=False)
    _honest: dict[int, bytes] = field(init=False)
    _mean: tuple[SumStatement, SignedRun] | None = None
    _wrong: dict[int, SignedRun] = field(default_factory=dict)
    """The wrong outputs whose peers have not shown their inputs yet."""

    def __post_init__(self) -> None:
        segment = self.place.segment
        self._hops = SegmentHops.of(self.terms, segment.start, segment.stop)
        made = self._hops.outputs(self.contributions)
        self._honest = {number: _leaf(payload) for number, payload in made.items()}

    @property
    def owner(self) -> int:
        return self._hops.owner

    @property
    def is_wrong(self) -> bool:
        """Whether the update is not what the contributions make it."""
        return _leaf(self.update) != self._honest[self.owner]

    @property
    def due(self) -> tuple[int, ...]:
        """The peers to ask for what was signed to them."""
        return tuple(self._wrong)

    def take_mean(self, shown: Sequence[SignedRun]) -> None:
        """Take what a participant shows. If the owner's mean of this part is among it, and is that
        of the update, the search begins."""
        if self.is_begun or not self.is_wrong:
            return
        for each in shown:
            stated = self._checked(each, self.owner)
            if stated is None:
                continue
            if self._mean is not None and stated.contradicts(self._mean[0]):
                what = "it signed two different means of its part"
                self.found.append(Traced(self.owner, "lied", what, self._mean[1], (each,)))
                self.is_begun = True
                return
            self._mean = stated, each
            if stated.leaf(self.place.index) == _leaf(self.update):
                self.is_begun = True
                self._suspect(self.owner, each)
                return

    def take_inputs(self, number: int, shown: Sequence[SignedRun]) -> None:
        """Take what peer number `number` shows of the sums that were signed to it. Pass () if it
        does not answer."""
        output = self._wrong.pop(number)
        inputs: dict[int, tuple[SumStatement, SignedRun]] = {}
        for child in self._hops.children(number):
            stated = [(self._checked(each, child), each) for each in shown]
            known = [(said, each) for said, each in stated if said is not None]
            if not known:
                what = f"it does not show what {self.peers[child]} signed to it"
                self.found.append(Traced(number, "withheld", what, output))
                return
            inputs[child] = known[0]
        wrong = [
            child
            for child, (said, _) in inputs.items()
            if said.leaf(self.place.index) != self._honest[child]
        ]
        for child in wrong:
            self._suspect(child, inputs[child][1])
        if not wrong:
            self._convict(number, output, tuple(each for _, each in inputs.values()))

    def _suspect(self, number: int, output: SignedRun) -> None:
        if self._hops.children(number):
            self._wrong[number] = output
        else:
            self._convict(number, output, ())

    def _convict(self, number: int, output: SignedRun, inputs: tuple[SignedRun, ...]) -> None:
        made = "mean" if number == self.owner else "sum"
        what = f"the {made} that it signed does not follow from its contribution"
        if inputs:
            what += " and from the sums that were signed to it"
        self.found.append(Traced(number, "lied", what, output, inputs))

    def _checked(self, run: SignedRun, number: int) -> SumStatement | None:
        """Return the statement of peer number `number` in `run`; None if it is not about this
        segment or is not signed."""
        if run.peer != self.peers[number]:
            return None
        try:
            stated = verified(run, self.roster, self.verify)
        except RemoteProtocolError:
            return None
        return stated if self.place.is_about(stated) else None


def proves(trace: Trace, claimed: Traced) -> bool:
    """Return whether the evidence in `claimed` shows that its peer lied. `trace` has the facts: the
    terms and the contributions. Anybody who has them can check the evidence again."""
    again = Trace(
        trace.terms,
        trace.peers,
        trace.roster,
        trace.place,
        trace.contributions,
        trace.update,
        trace.verify,
    )
    number = claimed.number
    stated = again._checked(claimed.output, number)
    if claimed.kind != "lied" or stated is None:
        return False
    others = [again._checked(each, number) for each in claimed.inputs]
    if any(each is not None and each.contradicts(stated) for each in others):
        return True
    if stated.leaf(trace.place.index) == again._honest[number]:
        return False
    again._suspect(number, claimed.output)
    if number in again.due:
        again.take_inputs(number, claimed.inputs)
    return [(each.number, each.kind) for each in again.found] == [(number, "lied")]


def _leaf(payload: Bytes) -> bytes:
    return blake3(payload).digest()
