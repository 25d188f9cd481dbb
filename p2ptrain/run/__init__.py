"""The documents of a run: manifest, allowlist, amendments, data index, grants of delegates, and
requests to join with their tokens and denials.

`draft` is not imported here, because it loads pydantic, which only publishing a run needs.
"""

from p2ptrain.run.allowlist import Allowlist, SignedAllowlist
from p2ptrain.run.amendment import Amendment, Leg, SignedAmendment
from p2ptrain.run.co_organisers import CoOrganisers
from p2ptrain.run.data_index import DataIndex
from p2ptrain.run.denial import Denial, SignedDenial
from p2ptrain.run.envelope import Signed
from p2ptrain.run.files import (
    load_allowlist,
    load_amendments,
    load_denials,
    load_grants,
    load_lists,
    load_run,
    save_allowlist,
    save_amendments,
    save_denials,
    save_grants,
    save_hand_overs,
    save_lists,
    save_run,
)
from p2ptrain.run.grant import Grant, SignedGrant
from p2ptrain.run.hand_over import HandOver, SignedHandOver
from p2ptrain.run.join_request import JoinRequest
from p2ptrain.run.manifest import CodecSpec, OuterSpec, RunManifest
from p2ptrain.run.published_run import Run
from p2ptrain.run.roles import READER, TRAINER, Role
from p2ptrain.run.token import SignedToken, Ticket, Token

__all__ = [
    "READER",
    "TRAINER",
    "Allowlist",
    "Amendment",
    "CoOrganisers",
    "CodecSpec",
    "DataIndex",
    "Denial",
    "Grant",
    "HandOver",
    "JoinRequest",
    "Leg",
    "OuterSpec",
    "Role",
    "Run",
    "RunManifest",
    "Signed",
    "SignedAllowlist",
    "SignedAmendment",
    "SignedDenial",
    "SignedGrant",
    "SignedHandOver",
    "SignedToken",
    "Ticket",
    "Token",
    "load_allowlist",
    "load_amendments",
    "load_denials",
    "load_grants",
    "load_lists",
    "load_run",
    "save_allowlist",
    "save_amendments",
    "save_denials",
    "save_grants",
    "save_hand_overs",
    "save_lists",
    "save_run",
]
