"""Let a delegate admit peers from its own home: `p2ptrain peers approve`, without an organiser's
key.

A delegate signs a grant, and its node tells the other peers. The members have agreed in their
ledger on who is a delegate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from p2ptrain.cli.commands.run_amend import course_of
from p2ptrain.cli.control_client import notify
from p2ptrain.cli.output import progress, result_json
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.identity import Identity
    from p2ptrain.ids import PeerId
    from p2ptrain.run import Amendment, Grant, Role, Run, SignedGrant
    from p2ptrain.run.grant import Delegations


def has_delegates(where: Home, run: Run) -> bool:
    """Return whether an amendment in this home names delegates."""
    from p2ptrain.run import load_amendments

    return any(each.amendment.admitters for each in load_amendments(where.amendments, run))


def delegations_now(where: Home, run: Run) -> Delegations:
    """Return who is a delegate now, according to the node or the ledger in this home.

    Raises P2PTrainError: a node runs here, but does not answer."""
    from p2ptrain.run.grant import delegations

    return delegations(_in_force(where, run)) if has_delegates(where, run) else {}


def _in_force(where: Home, run: Run) -> Sequence[Amendment]:
    from p2ptrain.run import load_amendments

    course = course_of(where, run)
    held = {each.digest: each.amendment for each in load_amendments(where.amendments, run)}
    agreed = [held[digest] for digest in course.agreed if digest in held]
    return [each for each in agreed if each.step <= course.step]


def delegate_in(where: Home, run: Run) -> tuple[Identity, int] | None:
    """Return the identity in this home and the amendment that makes it a delegate; None if it is
    not a delegate."""
    from p2ptrain.identity import load_or_create

    if not where.identity.exists():
        return None
    identity = load_or_create(where.identity)
    numbers = delegations_now(where, run).get(identity.peer)
    return (identity, max(numbers)) if numbers else None


def grant(
    where: Home,
    run: Run,
    delegate: Identity,
    amendment: int,
    peer: PeerId,
    role: Role,
    *,
    as_json: bool,
) -> None:
    """Admit `peer` with a grant of `delegate`, and notify the node that runs in this home.

    Raises ConfigError: an organiser has revoked the peer, or the delegate has made all its grants.
    """
    from p2ptrain.names import label
    from p2ptrain.run import Grant, SignedGrant, load_allowlist, load_grants, save_grants

    held = load_allowlist(where.allowlist, run)
    if held is not None and peer in held.allowlist.revoked:
        raise ConfigError(
            f"an organiser has revoked or denied {label(peer)}, so a delegate cannot admit it",
            code="GRANT-REVOKED",
            do=f"ask an organiser to run: p2ptrain peers approve {peer}",
        )
    grants = load_grants(where.grants, run)
    mine = [each for each in grants if each.delegate == delegate.peer]
    known = [each.grant for each in mine if each.grant.amendment == amendment]
    is_listed = held is not None and held.allowlist.roles.get(peer) is not None
    changed = not is_listed and not any(each.peer == peer and each.role == role for each in known)
    if changed:
        made = Grant(run.id, peer, amendment, _next_number(known), int(time.time()), role)
        save_grants(where.grants, [*grants, SignedGrant.publish(delegate, made)])
        notify(
            where.root,
            "reload-grants",
            without_node="no node is running in this home; the grant takes effect when one starts",
        )
    done = "may take part" if changed else "is admitted already"
    progress(f"{label(peer)} {done}; you decided this as a delegate of the run's organisers")
    progress(f"its whole id is {peer}")
    if as_json:
        result_json({"peer": peer, "role": role, "changed": changed, "amendment": amendment})


def _next_number(known: Sequence[Grant]) -> int:
    from p2ptrain.run.grant import GRANTS_PER_DELEGATE_MAX

    number = 1 + max((each.number for each in known), default=0)
    if number > GRANTS_PER_DELEGATE_MAX:
        raise ConfigError(
            f"a delegate can admit {GRANTS_PER_DELEGATE_MAX} peers, and you have admitted as many",
            code="GRANT-FULL",
            do="ask an organiser to run p2ptrain peers delegate for you again",
        )
    return number


def granted(where: Home, run: Run) -> list[SignedGrant]:
    """Return the grants that count now."""
    from p2ptrain.run import load_grants

    grants = load_grants(where.grants, run)
    counts = delegations_now(where, run) if grants else {}
    return [each for each in grants if each.counts(counts)]
