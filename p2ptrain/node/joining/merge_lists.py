"""Let an organiser's node merge two allowlists that organisers have signed at the same time.

All nodes use the same one of the two lists, and the other one's decisions would be lost. So the
node of an organiser that has both signs the next list, with the decisions of both. If two such
nodes do it at the same time, they sign the same bytes. If several organisers must sign each list,
the node cannot do that alone, and warns its user instead.
"""

from __future__ import annotations

from p2ptrain.archive.home import signing_allowlist
from p2ptrain.names import label
from p2ptrain.node.gossip.allowlist_gossip import admission_changed
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.run import Allowlist, SignedAllowlist

NAMED_MAX = 4


async def merge_lists(context: Context) -> None:
    """Merge allowlists until cancelled. Raises StoreError: a list cannot be stored."""
    if context.me not in context.admission.organisers:
        return
    while True:
        merged = _merged(context)
        if merged is None:
            context.alerts.clear("merge")
        elif context.manifest.organisers.signatures_min > 1:
            context.alerts.show("merge", _caution(context, merged))
        else:
            await _sign(context)
            continue
        await context.changes.wait_calmly()


def _merged(context: Context) -> Allowlist | None:
    """Return the next list, with the decisions of all lists; None if the newest list has them."""
    held, lacking = context.admission.allowlist, context.admission.to_merge
    if held is None or not lacking:
        return None
    after = held.allowlist
    for each in lacking:
        after = after.merged(each.allowlist)
    return after.numbered(held.allowlist.sequence + 1)


async def _sign(context: Context) -> None:
    with signing_allowlist(context.home):
        context.admission.reload()
        merged = _merged(context)
        if merged is None:
            return
        signed = SignedAllowlist.publish(context.identity, merged)
        context.admission.adopt_if_newer(signed.to_bytes())
    context.journal.write("merged-allowlists", sequence=merged.sequence)
    await admission_changed(context)


def _caution(context: Context, merged: Allowlist) -> Caution:
    held = context.admission.allowlist
    assert held is not None
    now, then = held.allowlist.roles, merged.roles
    differ = sorted(peer for peer in now.keys() | then if now.get(peer) != then.get(peer))
    names = ", ".join(map(label, differ[:NAMED_MAX])) or "revocations"
    return Caution(
        "ALLOW-MERGE",
        f"organisers signed two allowlists at the same time, and the newest one lacks: {names}",
        "approve or revoke these peers again; several organisers must sign the next list",
    )


def keeps_revisions(context: Context) -> bool:
    """Return whether the run's lists count revisions (see `run/allowlist`): there are other
    organisers or delegates, whose decisions a list must outrank."""
    several = len(context.admission.organisers) > 1
    return several or any(each.amendment.admitters for each in context.amendments.held)
