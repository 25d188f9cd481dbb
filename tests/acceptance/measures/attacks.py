"""The attacks that a node must withstand, and for each attack the tests that show this.

The numbers identify the attacks in the output of `scripts/accept siege`. A row names test files or
individual tests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attack:
    number: str
    name: str
    tests: tuple[str, ...]


ATTACKS = (
    Attack(
        "1",
        "strangers claim that another node has our identity",
        ("tests/node/gossip/test_identity_attacks.py", "tests/node/test_duplicate_watch.py"),
    ),
    Attack(
        "2",
        "a member replays old heartbeats",
        ("tests/simulation/test_identities.py", "tests/node/test_incarnations.py"),
    ),
    Attack(
        "3",
        "a gossip frame with 480,000 topics, and the worst frames of each field",
        ("tests/net/test_frames.py",),
    ),
    Attack(
        "4",
        "false addresses of members in DHT answers",
        ("tests/net/test_discovery.py", "tests/net/test_kad.py"),
    ),
    Attack("5", "DNS servers that never answer", ("tests/net/test_connecting.py",)),
    Attack(
        "6",
        "Sybils in an open run, and updates beyond the bound on influence",
        (
            "tests/ledger/test_founders.py",
            "tests/node/outer_state/test_updates.py",
            "tests/simulation/test_mutants.py",
        ),
    ),
    Attack(
        "7",
        "a participant that lies in the reduce at every step",
        (
            "tests/ledger/test_blame.py",
            "tests/simulation/test_spoiling.py",
            "tests/ring/test_hostile_neighbour.py",
        ),
    ),
    Attack(
        "8", "BASE requests with alternating checkpoints", ("tests/node/joining/test_bases.py",)
    ),
    Attack(
        "9",
        "a home that other users can write to, symbolic links",
        ("tests/node/test_home_safety.py",),
    ),
    Attack(
        "10",
        "strangers that delay a node's questions",
        ("tests/node/gossip/test_whose_word.py", "tests/node/gossip/test_asking.py"),
    ),
    Attack(
        "11",
        "small-order keys, zones, loopback endpoints, a reflected proof",
        (
            "tests/foundation/test_identity.py",
            "tests/node/gossip/test_loopback.py",
            "tests/ipc/test_admission.py::test_rank_refuses_its_own_proof_sent_back",
        ),
    ),
    Attack(
        "12",
        "providers that other implementations cannot look up",
        ("tests/net/test_kad.py::test_key_is_a_sha2_256_multihash",),
    ),
    Attack("14", "exit statuses that mislead", ("tests/cli/test_errors.py",)),
)
