"""An observer's view of a run: verified entries, and the records that agree with them.

Entries are checked by their certificates, beginning with the run's manifest, or with a base at a
checkpoint that the observer's user trusts. They are not kept: only the state at the head, and what
the last outer steps show. A record counts if a member, a founder, an organiser or a listed peer has
signed it, and if it agrees with the entry that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Commit, LineId, Participant, Skip, SnapshotRef
from p2ptrain.ledger.chain.verify import check_certified
from p2ptrain.peers.outside.sample_text import SampleText, read_sample, sampler_of
from p2ptrain.peers.outside.telemetry import TelemetryRecord, read_record

STEPS_KEPT = 256
"""Number of newest outer steps that are kept. Records about earlier steps are ignored."""

SIGNERS_MAX = 64
"""Maximum number of signers whose records about one outer step are kept."""


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """A snapshot of θ and m before outer step `step`, and the entry that certifies it. `tokens` is
    the number of tokens committed before that step; None if it is not known. `named_by` is the
    entry, with the line that decided it; None for the first weights, which the manifest names."""

    step: int
    digest: Digest
    height: int
    signed_by: tuple[PeerId, ...]
    tokens: int | None
    named_by: tuple[LineId, Certified] | None = None


@dataclass(slots=True)
class WatchedStep:
    """An ended outer step, by the ledger: afterwards, the outer step counter is `step`. `losses`
    has the records about it, by signer; `samples` the texts by prompt, each with its signer. A
    skipped step has no participants."""

    step: int
    height: int
    head: Digest
    skipped: bool
    attempt: int
    members: tuple[PeerId, ...]
    participants: tuple[Participant, ...]
    tokens_total: int
    samplers: tuple[PeerId, ...] = ()
    """The participants of the newest committed update. One of them samples θ."""
    losses: dict[PeerId, TelemetryRecord] = field(default_factory=dict)
    samples: dict[int, tuple[PeerId, str]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens that this outer step added to θ."""
        return sum(each.tokens for each in self.participants)

    @property
    def loss(self) -> float | None:
        """The median of the reported training losses: one liar among three cannot move it far."""
        told = [each.loss for each in self.losses.values() if each.loss is not None]
        return median(told) if told else None

    @property
    def held_out(self) -> tuple[int, float] | None:
        """The median of the reported losses of θ on held-out data, for the newest outer step that
        the records know; with that step. None if no record has one."""
        known = [each for each in self.losses.values() if each.held_out is not None]
        newest = max((each.held_out_step for each in known), default=None)
        told = [each.held_out for each in known if each.held_out_step == newest]
        values = [loss for loss in told if loss is not None]
        return None if newest is None else (newest, median(values))


class WatchedLedger:
    """The ledger as an observer follows it. `vouched` says whether a document of the organiser
    names a peer."""

    def __init__(
        self,
        run: RunId,
        rules: Rules,
        verify: Verify,
        start: LedgerState | None = None,
        *,
        vouched: Callable[[PeerId], bool] = lambda peer: False,
        prompts: int = 0,
    ) -> None:
        self._run, self._rules, self._verify = run, rules, verify
        self._vouched, self._prompts = vouched, prompts
        self.state = genesis(rules) if start is None else start
        self.steps: dict[int, WatchedStep] = {}
        """The newest outer steps, oldest first, by the number that the counter reached."""
        self.snapshot: NamedSnapshot | None = None
        """The newest snapshot that an entry names. A base begins with such an entry."""
        self._samplers: tuple[PeerId, ...] = ()

    def add(self, page: Sequence[Certified]) -> list[WatchedStep]:
        """Verify the entries of `page` that follow our head, and return the outer steps that they
        end. Raises RemoteProtocolError for the first invalid entry; those before it count."""
        ended = list[WatchedStep]()
        for certified in page:
            if certified.entry.height <= self.state.height:
                continue
            before = self.state
            self.state = check_certified(self._rules, before, certified, self._verify)
            if step := self._ended(before, certified):
                ended.append(step)
        return ended

    def _ended(self, before: LedgerState, certified: Certified) -> WatchedStep | None:
        value, state = certified.entry.value, self.state
        if not isinstance(value, Commit | Skip):
            return None
        participants: tuple[Participant, ...] = ()
        if isinstance(value, Commit):
            assert before.roster is not None, "a valid Commit ends a reduce"
            participants = before.roster.participants
            self._samplers = tuple(each.peer for each in participants)
        step = WatchedStep(
            step=state.step,
            height=state.height,
            head=state.head,
            skipped=isinstance(value, Skip),
            attempt=before.attempt,
            members=before.members,
            participants=participants,
            tokens_total=state.tokens,
            samplers=self._samplers,
        )
        self.steps[step.step] = step
        while len(self.steps) > STEPS_KEPT:
            del self.steps[next(iter(self.steps))]
        if isinstance(value, Commit) and value.snapshot is not None:
            self.snapshot = self._named(value.snapshot, (before.line, certified))
        return step

    def _named(self, snapshot: SnapshotRef, by: tuple[LineId, Certified]) -> NamedSnapshot:
        before, (_, certified) = self.steps.get(snapshot.step), by
        return NamedSnapshot(
            snapshot.step,
            snapshot.digest,
            certified.entry.height,
            tuple(sorted(certified.certificate.voters)),
            None if before is None else before.tokens_total,
            by,
        )

    def note_records(self, records: Iterable[bytes]) -> list[str]:
        """Keep the records that count. Return why each of the others does not. Records about steps
        that we do not know yet, or no longer, are skipped."""
        faults = list[str]()
        for data in records:
            try:
                self._note_record(*read_record(data))
            except RemoteProtocolError as exc:
                faults.append(exc.what)
        return faults

    def _note_record(self, signer: PeerId, record: TelemetryRecord) -> None:
        step = self.steps.get(record.step)
        if record.run != self._run:
            raise RemoteProtocolError("a record is about a different run")
        if step is None:
            return
        if not self._counts(signer, step):
            raise RemoteProtocolError(f"{signer} signed a record, but is not known in the run")
        ledger = (step.height, step.head, step.tokens_total, len(step.participants))
        if (record.height, record.head, record.tokens, record.participants) != ledger:
            raise RemoteProtocolError(
                f"the record of {signer} about outer step {record.step} contradicts the ledger"
            )
        if signer in step.losses or len(step.losses) < SIGNERS_MAX:
            step.losses[signer] = record

    def note_samples(self, samples: Iterable[bytes]) -> list[str]:
        """Keep the samples that count: those of the chosen members. Return why each of the others
        does not."""
        faults = list[str]()
        for data in samples:
            try:
                self._note_sample(*read_sample(data))
            except RemoteProtocolError as exc:
                faults.append(exc.what)
        return faults

    def _note_sample(self, signer: PeerId, sample: SampleText) -> None:
        if sample.run != self._run or sample.prompt >= self._prompts:
            raise RemoteProtocolError("a sample is about a different run or prompt")
        step = self.steps.get(sample.step)
        if step is None:
            return
        if signer != sampler_of(self._run, sample.step, step.samplers):
            raise RemoteProtocolError(f"{signer} was not chosen to sample outer step {sample.step}")
        step.samples.setdefault(sample.prompt, (signer, sample.text))

    def _counts(self, signer: PeerId, step: WatchedStep) -> bool:
        return signer in step.members or self.state.is_member(signer) or self._vouched(signer)
