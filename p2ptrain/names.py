"""Pronounceable names for peer ids.

A name depends only on the peer id, so every node shows the same name for a peer. A name is not a
proof of identity, so it is always shown together with the end of the id. There are 64 × 64 names:
in a run of 20 peers, the chance that two peers share a name is 5 %.
"""

from __future__ import annotations

import hashlib
import re

from p2ptrain.ids import PeerId

_ADJECTIVES = """
amber ample ashen azure bold brave breezy bright brisk calm candid clever cobalt coral cosmic
crisp daring deft dusky eager early earnest fabled fair fleet fond frosty gentle gilded glad
golden grand hardy hazel honest humble ivory jade jolly keen kind lively loyal lucid lunar mellow
merry mighty misty noble nimble olive patient placid plucky proud quick quiet rapid rustic sable
silver sunny swift
""".split()
_ANIMALS = """
adder badger bear beaver bison bittern boar bream buzzard condor cougar crane cricket curlew deer
dingo dolphin dove eagle egret eland falcon ferret finch fox gecko gibbon goose grouse gull hare
hawk heron hornet ibex ibis impala jackal jay kestrel kite koala lark lemur lizard lynx magpie
marten mole moose newt ocelot orca oriole osprey otter owl panda puffin raven robin seal stork
wren
""".split()

_PEER_ID = re.compile(r"\b12D3KooW[1-9A-HJ-NP-Za-km-z]{44}\b")

assert len(_ADJECTIVES) == len(_ANIMALS) == 64


def peer_name(peer: PeerId) -> str:
    """Return a name such as "brave-otter"."""
    digest = hashlib.sha256(peer.encode()).digest()
    return f"{_ADJECTIVES[digest[0] % 64]}-{_ANIMALS[digest[1] % 64]}"


def label(peer: PeerId) -> str:
    """Return a label such as "brave-otter (…Xk3f9Q)": the name, and the end of the peer id to tell
    apart peers with the same name."""
    return f"{peer_name(peer)} (…{peer[-6:]})"


def named(text: str) -> str:
    """Return `text` with each peer id replaced by its label. Use it on text from modules that know
    only peer ids."""
    return _PEER_ID.sub(lambda found: label(PeerId(found[0])), text)
