"""Deliberate defects of the ledger. If the simulator did not find these defects, it would prove
nothing.

Each mutant patches a plausible mistake into the production code. It names the checkers that can
report the mistake, and a simulated world in which the mistake has an effect.
"""

from __future__ import annotations

from tests.simulation.defects import audit_defects as audits
from tests.simulation.defects import blame_defects as blame
from tests.simulation.defects import branching_defects as branching
from tests.simulation.defects import claim_defects as claims
from tests.simulation.defects import content_defects as content
from tests.simulation.defects import delegation_defects as delegation
from tests.simulation.defects import founders_defects as founders
from tests.simulation.defects import voting_defects as voting
from tests.simulation.defects.planting import STUCK, Mutant

_APPEALS = ("FakersAreExcluded",)
_BLOCKS = ("BlocksAreCommittedOnce",)
_CONTRADICTIONS = ("ContradictionsAreEvidence",)
_COST = ("SpoilersCostLittle",)
_TIME = ("SpoilersCostLittleTime",)
_SHARE = ("ExclusionsAreShared",)
_CERTIFICATES = ("CertificatesVerify",)
_ENTITLED = ("ProposalsAreEntitled",)
_FOUNDED = ("VerdictsAreFounded",)
_KEPT = ("FoundersKeepTheirVotes",)
_BORNE = ("OneLossIsBorne",)
_EXCLUSIONS = ("ExclusionsAreKept",)
_FORKS = ("OneEntryPerHeight",)
_SIGNED = ("ProposalsAreSigned",)
_VOTES = ("VotesAreKept",)

_DELEGATED = ("delegated", 16, 3)
"""World, outer steps and founders. After 16 steps, all founders have been replaced."""

MUTANTS = (
    Mutant("half-is-a-quorum", voting.half_is_a_quorum, _CERTIFICATES, "partitions"),
    Mutant("promise-not-persisted", voting.promise_not_persisted, _VOTES, "torn"),
    Mutant("vote-not-persisted", voting.vote_not_persisted, _VOTES, "torn"),
    Mutant("spoken-before-written", voting.spoken_before_written, _VOTES, "calm"),
    Mutant("answered-before-written", voting.answered_before_written, _VOTES, "lossy"),
    Mutant("accepted-forgotten", voting.accepted_forgotten, _VOTES, "torn"),
    Mutant("lower-round-accepted", voting.lower_round_accepted, _VOTES, "lossy"),
    Mutant("round-0-proposed-anew", voting.round_0_proposed_anew, _VOTES, "torn"),
    Mutant("accepted-value-not-adopted", voting.accepted_value_not_adopted, _FORKS, "torn"),
    Mutant("promises-not-shown", voting.promises_not_shown, _ENTITLED, "liars"),
    Mutant("proposer-not-checked", voting.proposer_not_checked, _SIGNED, "liars"),
    Mutant("claims-not-checked", voting.claims_not_checked, _SIGNED, "liars"),
    Mutant("strangers-may-promise", voting.strangers_may_promise, _ENTITLED, "liars"),
    Mutant("claims-of-any-round", voting.claims_of_any_round, _ENTITLED, "liars"),
    Mutant("shown-claims-not-checked", voting.shown_claims_not_checked, _ENTITLED, "liars"),
    Mutant("proposer-need-not-vote", voting.proposer_need_not_vote, _CERTIFICATES, "liars"),
    Mutant("stale-voters-count", voting.stale_voters_count, _CERTIFICATES, "churn"),
    Mutant("learners-count", voting.learners_count, _CERTIFICATES, "churn"),
    Mutant("any-vote-counts", voting.any_vote_counts, _CERTIFICATES, "liars"),
    Mutant("certificate-not-checked", voting.certificate_not_checked, _CERTIFICATES, "liars"),
    Mutant(
        "certificate-of-another-height",
        voting.certificate_of_another_height,
        _CERTIFICATES,
        "liars",
    ),
    Mutant("commit-without-bytes", content.commit_without_bytes, ("CommitsAreHeld",), "crashes"),
    Mutant("claims-not-doubted", content.claims_not_doubted, ("SnapshotsAreTrue",), "liars"),
    Mutant("commit-on-one-peers-claim", content.one_maker_is_enough, ("CommitsAreMade",), "liars"),
    Mutant("dropped-at-will", content.others_dropped_at_will, ("NobodyIsUsurped",), "liars"),
    Mutant("snapshot-not-checked", content.snapshot_not_checked, ("SnapshotsAreTrue",), "liars"),
    Mutant(
        "snapshot-on-one-peers-claim", content.one_word_is_enough, ("SnapshotsAreVouched",), "liars"
    ),
    Mutant("state-not-checked", content.state_not_checked, ("StatesAreNamed",), "liars", 20),
    Mutant("any-base-taken", content.any_base_taken, _FORKS, "pruning"),
    Mutant("amendment-unseen", content.amendment_not_asked_for, ("AmendmentsAreHeld",), "amended"),
    Mutant("amended-at-once", content.amended_at_once, ("TermsAreForeseen",), "amended"),
    Mutant("lease-returned-twice", content.lease_returned_twice, _BLOCKS, "churn"),
    Mutant("lease-kept-after-commit", content.lease_kept_after_commit, _BLOCKS, "calm"),
    Mutant("lease-lost", content.lease_lost_with_its_member, _BLOCKS, "churn"),
    Mutant("newcomers-vote-at-once", content.newcomers_vote_at_once, ("NewcomersAreFew",), "churn"),
    Mutant("grace-ignored", content.grace_ignored, ("NobodyIsStarved",), "calm"),
    Mutant("strangers-may-vote", founders.strangers_may_vote, ("OnlyFoundersVote",), "allies", 5),
    Mutant("down-is-gone", founders.down_is_gone, _KEPT, "sybils", 5),
    Mutant("old-goodbyes-count", founders.goodbyes_sent_again_count, _KEPT, "sybils", 5),
    Mutant("founders-dropped-at-will", founders.founders_dropped_at_will, _KEPT, "allies", 5),
    Mutant("goodbyes-below-three", founders.goodbyes_below_three, _BORNE, "sybils", 5),
    Mutant(
        "returned-do-not-vote",
        founders.returned_founders_do_not_vote,
        ("FoundersComeBack",),
        "sybils",
        10,
    ),
    Mutant("revoked-stay", delegation.revoked_delegates_stay, ("RevokedLeave",), *_DELEGATED),
    Mutant("lists-at-once", delegation.lists_take_effect_at_once, ("RevokedLeave",), *_DELEGATED),
    Mutant(
        "unproven-delegates-vote",
        delegation.unproven_delegates_vote,
        ("NewcomersAreFew",),
        *_DELEGATED,
    ),
    Mutant(
        "delegates-promoted-at-will",
        delegation.delegates_promoted_at_will,
        ("DelegatesMayVanish",),
        *_DELEGATED,
    ),
    Mutant("absent-dropped-at-once", delegation.absent_dropped_at_once, _KEPT, *_DELEGATED),
    Mutant(
        "absent-never-dropped",
        delegation.absent_never_dropped,
        ("TheAbsentAreReplaced",),
        "delegated",
        30,
        3,
    ),
    Mutant("absence-below-three", delegation.absence_below_three, _BORNE, "delegated", 24, 3),
    Mutant(
        "stopped-by-a-revocation",
        delegation.run_is_stopped_by_a_revocation,
        ("RevocationsAreBorne",),
        *_DELEGATED,
    ),
    Mutant(
        "volunteers-wait-for-founders",
        delegation.volunteers_wait_for_founders,
        ("VolunteersTrain",),
        "delegated",
        30,
        3,
    ),
    Mutant(
        "absent-return-unasked",
        delegation.absent_founders_return_unasked,
        ("OnlyThePresentReturn",),
        *_DELEGATED,
    ),
    Mutant("heals-towards-fewer", branching.heals_towards_fewer, ("HealsGoUp",), "branch", 60),
    Mutant(
        "unnamed-follow-at-once",
        branching.unnamed_follow_at_once,
        ("NobodyIsDrawnAway",),
        "branch",
        60,
    ),
    Mutant("lines-not-told-apart", branching.lines_not_told_apart, _CERTIFICATES, "branch", 60),
    Mutant("branch-signed-by-one", branching.branch_signed_by_one, _CERTIFICATES, "branch", 60),
    Mutant("blame-forgotten", blame.past_steps_forgotten, _COST, "spoiled", 50, 2),
    Mutant("accuser-not-doubted", blame.accuser_not_doubted, _SHARE, "spoiled", 16, 3),
    Mutant("attempts-add-up", blame.attempts_of_a_step_add_up, _SHARE, "spoiled", 50, 3),
    Mutant("nothing-is-forgiven", blame.nothing_is_forgiven, _SHARE, "spoiled", 50, 3),
    Mutant(
        "expensive-forgiven-soon", blame.expensive_failures_forgiven_soon, _TIME, "spoiled", 90, 3
    ),
    Mutant("tardy-rounds-are-not-shortened", blame.tardy_turns_are_whole, _TIME, "spoiled", 40, 3),
    Mutant(
        "equally-doubted-do-not-take-turns", blame.no_turns_among_equals, _SHARE, "spoiled", 16, 3
    ),
    Mutant("proposer-back", blame.proposer_brings_itself_back, _COST, "spoiled", 30, 3),
    Mutant("one-alone-for-ever", blame.lone_participant_never_times_out, (STUCK,), "spoiled", 8, 2),
    Mutant("claims-not-bound", claims.claims_not_bound, ("ClaimsAreBound",), "claims"),
    Mutant("claims-misquoted", claims.claims_misquoted, ("ClaimsAreMade",), "claims"),
    Mutant("claims-unsigned", claims.claims_unsigned, ("ClaimsAreMade",), "claims"),
    Mutant("older-claims-count", claims.older_claims_count, ("NewestClaimsCount",), "claims"),
    Mutant("contradictions-ignored", claims.contradictions_ignored, _CONTRADICTIONS, "claims"),
    Mutant("old-claims-repeated", claims.old_claims_repeated, _CONTRADICTIONS, "claims"),
    Mutant("claims-not-shown", claims.claims_not_shown, ("SplitClaimsAreFound",), "claims", 12),
    Mutant("one-finding-enough", audits.one_finding_is_enough, _FOUNDED, "auditors"),
    Mutant("undrawn-auditors-count", audits.undrawn_auditors_count, _FOUNDED, "auditors"),
    Mutant("findings-unsigned", audits.findings_unsigned, _FOUNDED, "auditors"),
    Mutant("any-finding-is-a-fault", audits.any_finding_is_a_fault, _FOUNDED, "auditors"),
    Mutant("two-auditors-enough", audits.two_auditors_are_enough, _FOUNDED, "auditors", 8, 3),
    Mutant("draw-foreseeable", audits.draw_is_foreseeable, _FOUNDED, "auditors"),
    Mutant("claims-judged-again", audits.claims_judged_again, _FOUNDED, "auditors", 12, 6),
    Mutant("claims-judged-for-ever", audits.claims_judged_for_ever, _FOUNDED, "auditors", 12),
    Mutant("excluded-take-part", audits.excluded_take_part, _EXCLUSIONS, "auditors"),
    Mutant("excluded-return-early", audits.excluded_return_early, _EXCLUSIONS, "auditors"),
    Mutant("excluded-for-ever", audits.excluded_for_ever, _EXCLUSIONS, "auditors", 14),
    Mutant("exclusions-stop-the-run", audits.exclusions_stop_the_run, (STUCK,), "auditors", 12),
    Mutant(
        "excluded-lose-votes",
        audits.excluded_lose_their_votes,
        ("VerdictsTouchNoVote",),
        "auditors",
    ),
    Mutant("one-judge-enough", audits.one_judge_is_enough, _FOUNDED, "auditors", 12, 6),
    Mutant(
        "first-auditors-judge-appeals",
        audits.first_auditors_judge_appeals,
        _FOUNDED,
        "auditors",
        12,
        6,
    ),
    Mutant("appeals-ignored", audits.appeals_ignored, _APPEALS, "auditors", 20, 6),
    Mutant("verdicts-not-proposed", audits.verdicts_not_proposed, _APPEALS, "auditors", 20, 6),
    Mutant("auditors-handpicked", audits.auditors_handpicked, ("AuditorsAreFair",), "auditors", 12),
    Mutant("branch-loses-leases", branching.lease_kept_by_who_is_gone, _BLOCKS, "branch", 60),
)
