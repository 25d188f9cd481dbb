"""Notice that this node's role has changed: from trainer to reader, or from reader to trainer.

A node decides at its start whether it trains. So a trainer that has become a reader ends, and its
user starts it again. A reader that may train now goes on as a reader and says so.
"""

from __future__ import annotations

from p2ptrain.errors import NotAuthorised
from p2ptrain.names import label
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

READER = Caution(
    "ROLE-READER",
    "this node is admitted as a reader: it fetches and serves the run, but never trains or votes",
    "to train, ask the organiser to admit you as a trainer",
)
MAY_TRAIN = Caution(
    "ROLE-TRAINER",
    "this node started as a reader, and may train now",
    "start it again to train",
)


async def notice_role(context: Context) -> None:
    """Show this node's role to its user until cancelled. Raises NotAuthorised: this node trains,
    and has become a reader."""
    was_reader = context.admission.is_reader(context.me)
    while True:
        is_reader = context.admission.is_reader(context.me)
        if is_reader and context.trains:
            raise _demoted(context)
        if is_reader:
            context.alerts.show("role", READER)
        elif was_reader and context.admission.may_train(context.me):
            context.alerts.show("role", MAY_TRAIN)
        await context.changes.wait_calmly()


def _demoted(context: Context) -> NotAuthorised:
    organiser = context.manifest.organiser
    return NotAuthorised(
        f"this node may only read run {context.manifest.name!r} from now on",
        code="AUTH-READER",
        evidence=[f"you are   {context.me}", f"organiser {organiser} {label(organiser)}"],
        likely="the organiser has changed its role from trainer to reader",
        do="start the node again to serve the run without training, or ask the organiser",
    )
