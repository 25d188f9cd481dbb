"""Sign an organiser's amendment (a change of a run's terms) and pass it to the local node:
`p2ptrain run amend`.

The amendment is signed only if it changes something and, as far as this home knows, members can
still agree on it in time. An amendment with invalid values is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from p2ptrain.cli.control_client import notify, send_command
from p2ptrain.errors import ConfigError, P2PTrainError, RemoteProtocolError, TryLater, counted

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.identity import Identity
    from p2ptrain.ids import Digest
    from p2ptrain.ledger.chain.values import Terms
    from p2ptrain.run import Amendment, Leg, Run, SignedAmendment
    from p2ptrain.run.manifest import CodecSpec, RunManifest

FAR = 10.0
"""Largest factor by which a rate can change without confirmation. A larger factor is probably a
typing error, and an agreed amendment cannot be withdrawn."""

FAR_STEPS = 100
"""Largest number of outer steps ahead at which an amendment can start without confirmation. A later
start is probably a typing error, since outer steps take minutes to hours. Once it is agreed, later
amendments cannot start at an earlier step."""

LEAD_STEPS = 2
"""Minimum number of outer steps from the current one to the start of an amendment. The current
outer step may already have its roster; the next roster names the amendment."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a run: the current outer step, and the agreed amendments."""

    step: int
    agreed: tuple[Digest, ...]


def wanted_amendment(run: Run, step: int, changes: Mapping[str, object]) -> Amendment:
    """Return the wanted amendment, not yet numbered. Raises ConfigError, code AMEND-VALUE."""
    from p2ptrain.run import Amendment

    if all(value is None for value in changes.values()):
        raise ConfigError(
            "the amendment changes nothing",
            code="AMEND-VALUE",
            do="give a new value, such as --lr 0.001; p2ptrain run amend --help lists the options",
        )
    try:
        return Amendment(run.id, 1, step, **changes)  # type: ignore[arg-type]  # checked there
    except ValueError as exc:
        raise ConfigError(
            f"the amendment is not valid: its {exc}",
            code="AMEND-VALUE",
            do="give a valid value; p2ptrain run amend --help describes the options",
        ) from exc


def amend(
    where: Home, run: Run, organiser: Identity, wanted: Amendment, *, far: bool = False
) -> SignedAmendment:
    """Number and sign `wanted`. Store it in the home and publish it, unless further organisers must
    sign: then the caller passes it on as a proposal.

    Without `far`, a large change of a rate or a start far ahead is refused.

    Raises:
        ConfigError: AMEND-LATE, AMEND-ORDER, AMEND-VALUE, AMEND-FAR.
        TryLater: AMEND-MISSING.
    """
    from p2ptrain.cli.commands.admission.proposals import missing_signatures
    from p2ptrain.run import SignedAmendment, load_amendments, save_amendments
    from p2ptrain.run.files import AMENDMENTS_MAX

    if wanted.step >= run.manifest.outer.steps:
        raise ConfigError(
            f"run {run.manifest.name!r} ends before outer step {wanted.step}",
            code="AMEND-VALUE",
            evidence=[f"its last outer step is {run.manifest.outer.steps - 1}"],
            do="choose an earlier outer step",
        )
    held = load_amendments(where.amendments, run)
    last = max((each.amendment for each in held), key=lambda each: each.number, default=None)
    course = course_of(where, run)
    _check_step(wanted.step, course.step, _lead_steps(wanted, run.manifest), last, far=far)
    before = _leg(run, held, course)
    try:
        if len(held) >= AMENDMENTS_MAX:
            raise ValueError(f"the run already has {len(held)} amendments, which is the limit")
        numbered = replace(
            _with_its_block(wanted, before.manifest.codec),
            number=1 if last is None else last.number + 1,
        )
        made = SignedAmendment.publish(organiser, numbered, run)
        if not numbered.does_more and before.amended(numbered).manifest == before.manifest:
            raise ValueError("it changes nothing")
        if not far:
            _check_leap(before.manifest, numbered)
    except ValueError as exc:
        raise ConfigError(
            f"the amendment does not fit run {run.manifest.name!r}: {exc}",
            code="AMEND-VALUE",
            evidence=[f"the run has {_words(before.manifest)}"],
            do=(
                "change at least one of these values; the number of inner steps must be a multiple "
                "of the number of fragments, and not less than the overlap"
            ),
        ) from exc
    if not missing_signatures(run, made.signed):
        save_amendments(where.amendments, [*held, made])
        notify_amendments(where)
    return made


def notify_amendments(where: Home) -> None:
    """Tell the node in this home that there is a new amendment."""
    notify(
        where.root,
        "reload-amendments",
        without_node=(
            "no node is running in this home: the amendment is published when you start one here"
        ),
    )


def next_step(run: Run, course: RunProgress, held: Sequence[SignedAmendment]) -> int:
    """Return the earliest outer step for a new amendment that does not change the schedule."""
    last = max((each.amendment.step for each in held), default=0)
    return max(course.step + LEAD_STEPS, last + 1)


def course_of(where: Home, run: Run) -> RunProgress:
    """Return the state of the run from the node here, or from the ledger if no node runs.

    Raises P2PTrainError: a node runs here, but does not answer, or its answer is malformed.
    """
    from p2ptrain.cli.commands.ledger import chain_of

    try:
        told = send_command(where.root, "reload-amendments")
    except P2PTrainError as error:
        if error.code != "NO-NODE":
            raise
    else:
        return _decode_progress(told)
    links = chain_of(run, where.ledger).links
    if not links:
        return RunProgress(0, ())
    state = links[-1].after
    return RunProgress(state.step, tuple(each.digest for each in state.terms))


def _decode_progress(reply: Mapping[str, object]) -> RunProgress:
    from p2ptrain.ids import Digest, is_digest

    step, agreed = reply.get("step"), reply.get("agreed")
    if type(step) is not int or not isinstance(agreed, list) or not all(map(is_digest, agreed)):
        raise RemoteProtocolError(
            "the node in this home gave a malformed answer about the run's progress"
        )
    return RunProgress(step, tuple(Digest(each) for each in agreed))


def _with_its_block(wanted: Amendment, held: CodecSpec) -> Amendment:
    """Change the codec's block (the number of elements that share a scale) together with the codec,
    as in a run file: int4 is too coarse for the larger blocks of other codecs. A block that is not
    a default was chosen for this run, and is kept.
    """
    from p2ptrain.config.run_file import usual_block

    if wanted.codec is None or wanted.codec_block is not None:
        return wanted
    if held.block != usual_block(held.name):
        return wanted
    block = usual_block(wanted.codec)
    return wanted if block == held.block else replace(wanted, codec_block=block)


def _lead_steps(wanted: Amendment, manifest: RunManifest) -> int:
    """Return the minimum number of outer steps until the amendment starts. With overlap, trainers
    begin an outer step before the previous step has a roster. So a change of the rate or of the
    number of inner steps needs one outer step more.
    """
    by_schedule = wanted.lr is not None or wanted.inner_steps is not None
    return LEAD_STEPS + (by_schedule and manifest.sync.overlap_steps > 0)


def _check_step(
    step: int, reached: int, lead_steps: int, last: Amendment | None, *, far: bool
) -> None:
    if step < reached + lead_steps:
        raise ConfigError(
            f"outer step {step} is too soon: outer step {reached} is under way",
            code="AMEND-LATE",
            likely="members must agree on an amendment before the outer step at which it starts",
            do=f"give --from-step {reached + lead_steps}, or a later step",
        )
    if last is not None and step <= last.step:
        raise ConfigError(
            f"amendment {last.number} starts at outer step {last.step}; a new one must start later",
            code="AMEND-ORDER",
            do=f"give --from-step {last.step + 1}, or a later step",
        )
    if step > reached + FAR_STEPS and not far:
        raise ConfigError(
            f"outer step {step} is {counted(step - reached, 'outer step')} ahead: "
            f"outer step {reached} is under way",
            code="AMEND-FAR",
            likely=(
                "a typing error; once members agree on the amendment, nothing can be amended "
                "before that step"
            ),
            do="correct the step; if it is right, add --far: the amendment cannot be withdrawn",
        )


def _check_leap(before: RunManifest, change: Amendment) -> None:
    rates = (("inner", before.inner.lr, change.lr), ("outer", before.outer.lr, change.outer_lr))
    for name, old, new in rates:
        if new is not None and not old / FAR <= new <= old * FAR:
            raise ConfigError(
                f"the {name} learning rate would change from {old:g} to {new:g}",
                code="AMEND-FAR",
                likely="a typing error: the rates differ by a factor of more than ten",
                do=(
                    "correct the rate; if it is right, add --far: the amendment cannot be withdrawn"
                ),
            )


def _leg(run: Run, held: Sequence[SignedAmendment], course: RunProgress) -> Leg:
    """Return the run with the amendments that members have agreed on or can still agree on. An
    amendment that is too late never applies, although it stays in the home.

    Raises TryLater: this home does not hold an agreed amendment.
    """
    from p2ptrain.ledger.chain.terms import amendment_fault
    from p2ptrain.run import Leg

    by_digest = {each.digest: each for each in held}
    counted: list[SignedAmendment] = []
    agreed: tuple[Terms, ...] = ()
    for digest in course.agreed:
        if digest not in by_digest:
            raise _not_here(digest)
        counted.append(by_digest[digest])
        agreed += (by_digest[digest].terms,)
    for each in sorted(held, key=lambda each: (each.amendment.number, each.digest)):
        if not amendment_fault(agreed, course.step, each.terms):
            counted.append(each)
            agreed += (each.terms,)
    leg = Leg(run.manifest)
    for each in counted:
        leg = leg.amended(each.amendment)
    return leg


def _not_here(digest: Digest) -> TryLater:
    return TryLater(
        "members have agreed on an amendment that this home does not hold",
        code="AMEND-MISSING",
        evidence=[f"its digest is {digest}"],
        likely=(
            "this home is a restored backup, or its node has not run since then; a running node "
            "fetches missing amendments from other peers"
        ),
        do="start a node in this home, wait until it has caught up, and repeat the command",
    )


def _words(manifest: RunManifest) -> str:
    inner, codec, sync = manifest.inner, manifest.codec, manifest.sync
    return (
        f"{counted(manifest.data.train_blocks, 'block')} of data, "
        f"{counted(inner.steps, 'inner step')}, {counted(sync.fragments, 'fragment')}, "
        f"overlap {sync.overlap_steps}, learning rate {inner.lr:g}, "
        f"codec {codec.name} in blocks of {codec.block}"
    )
