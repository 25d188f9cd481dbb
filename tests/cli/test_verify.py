"""`p2ptrain verify` accepts an intact home (a node's folder), and names the first changed part of
any other home."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2ptrain.archive.chain_log import entry_bytes
from p2ptrain.archive.home import Home, sole_use
from p2ptrain.errors import counted
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Certificate, Certified
from p2ptrain.node.consensus.pruning import prune_home
from p2ptrain.state import OuterState
from p2ptrain.store import RecordLog, Store
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command, Outcome
from tests.cli.histories import WrittenHistory, make_history

STEPS = 7
EVERY = 2


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def history(home: Home) -> WrittenHistory:
    rules = policy(participants_min=1, snapshot_every=EVERY)
    return make_history(home, publish(home, rules=rules, steps=99), STEPS)


@pytest.fixture
def verify(p2ptrain: Command, home: Home) -> Command:
    def run(*words: object) -> Outcome:
        return p2ptrain("verify", *words, "--home", home.root)

    return run


def path_of(home: Home, digest: Digest) -> Path:
    return home.store / "objects" / digest[0] / digest[1:]


def flip(path: Path, at: int = 50) -> None:
    """Flip one bit in a copy of the file. The file itself may be a link that other homes share."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()
    path.write_bytes(data)


def chunks(home: Home, blob: Digest) -> tuple[Digest, ...]:
    with Store(home.store) as store:
        return store.manifest(blob).chunks


def test_intact_run_verifies_from_genesis(verify: Command, history: WrittenHistory) -> None:
    done = verify("--json")
    assert done.code == 0
    assert done.json == {
        "schema": 1,
        "run": history.run.id,
        "name": "swarm",
        "good": True,
        "entries": 2 * STEPS,
        "begins_at": None,
        "height": 2 * STEPS,
        "head": history.chain[-1].entry.digest,
        "step": STEPS,
        "begun": 0,
        "reached": STEPS,
        "updates": STEPS,
        "compared": [2, 4, 6],
        "state": history.state,
        "torn": None,
        "difference": None,
        "missing": None,
    }
    told = verify()
    assert (told.code, told.out.count("\n")) == (0, 1)
    assert (
        "14 entries, 7 updates from outer step 0 to 7, which lead to 3 certified snapshots"
        in told.out
    )
    assert "all 14 entries are valid" in told.err


def test_certified_update_that_exceeds_the_bound_is_reported(verify: Command, home: Home) -> None:
    rules = policy(participants_min=1, snapshot_every=EVERY, influence_max=0.1)
    made = make_history(home, publish(home, rules=rules, steps=99), STEPS)
    done = verify("--json")
    found = done.json["difference"]
    assert (done.json["good"], found["step"], found["digest"]) == (False, 0, made.updates[0])
    assert "moves a weight by" in found["what"]


@pytest.mark.parametrize(
    ("start", "begun", "compared"),
    [("genesis", 0, [2, 4, 6]), ("newest", 6, []), ("4", 4, [6])],
)
def test_replay_can_begin_at_any_snapshot_that_is_held(
    verify: Command, history: WrittenHistory, start: str, begun: int, compared: list[int]
) -> None:
    done = verify("--from", start, "--json").json
    assert (done["begun"], done["reached"], done["compared"]) == (begun, STEPS, compared)
    assert done["state"] == history.state


def test_home_with_two_snapshots_verifies_from_the_older_one(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    keep = [history.snapshots[4], history.snapshots[6]]
    keep += [update for step, update in history.updates.items() if step >= 4]
    with Store(home.store) as store:
        store._objects.grow_up(2**62)
        store.collect_garbage(keep)
    done = verify("--json").json
    assert (done["good"], done["begun"], done["compared"]) == (True, 4, [6])


def test_verification_works_while_the_node_runs(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    with sole_use(home), Store(home.store):
        assert verify().code == 0


def test_flipped_bit_in_an_update_is_reported(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    victim = chunks(home, history.updates[3])[0]
    flip(path_of(home, victim))
    done = verify("--json")
    assert done.code == 4
    assert "CKPT-HASH" in done.err
    assert done.json["good"] is False
    assert done.json["reached"] == 3
    assert done.json["difference"] == {
        "kind": "update",
        "height": 8,
        "step": 3,
        "digest": history.updates[3],
        "what": f"chunk {victim} no longer matches its digest",
        "signed_by": [load_or_create(home.identity).peer],
    }


@pytest.mark.parametrize("start", ["genesis", "4"])
def test_flipped_bit_in_a_snapshot_is_reported(
    verify: Command, home: Home, history: WrittenHistory, start: str
) -> None:
    victim = chunks(home, history.snapshots[4])[-1]
    flip(path_of(home, victim))
    done = verify("--from", start, "--json")
    found = done.json["difference"]
    assert (done.code, found["kind"], found["step"], found["height"]) == (4, "snapshot", 4, 10)
    assert victim in found["what"]


def test_flipped_bit_in_the_first_weights_is_reported(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    flip(path_of(home, chunks(home, history.run.manifest.genesis)[0]))
    found = verify("--json").json["difference"]
    assert (found["kind"], found["step"], found["height"]) == ("snapshot", 0, 0)
    assert found["signed_by"] == [history.run.manifest.organiser]


def test_flipped_bit_in_the_ledger_is_reported(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    log = home.ledger
    frames = [entry_bytes(each) for each in history.chain]
    log.unlink()
    for frame in frames:
        RecordLog(log).append([frame])
    flip(log, log.read_bytes().index(frames[4]) + 10)
    done = verify("--json")
    found = done.json["difference"]
    assert (done.code, found["kind"], found["height"]) == (4, "entry", 5)
    assert "damaged at byte" in found["what"]


@pytest.mark.parametrize("left", ["all but one byte", "one byte"])
def test_incomplete_last_record_of_the_ledger_is_reported_and_kept(
    verify: Command, home: Home, history: WrittenHistory, left: str
) -> None:
    *sound, last = [entry_bytes(each) for each in history.chain]
    RecordLog(home.ledger).rewrite(sound)
    good_bytes = home.ledger.stat().st_size
    RecordLog(home.ledger).append([last])
    whole = home.ledger.read_bytes()
    torn = whole[:-1] if left == "all but one byte" else whole[: good_bytes + 1]
    home.ledger.write_bytes(torn)
    done = verify("--json")
    assert (done.code, done.json["good"], done.json["entries"]) == (0, True, len(sound))
    left_bytes = counted(len(torn) - good_bytes, "byte")
    said = f"ledger.log ends in {left_bytes} of an incomplete record"
    assert done.json["torn"] == said
    assert said in done.err
    assert said in verify().out
    assert home.ledger.read_bytes() == torn


def test_entry_without_its_votes_is_reported(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    third = history.chain[2]
    unsigned = Certificate(third.entry.height, 0, third.entry.digest, ())
    history.chain[2] = Certified(third.entry, unsigned)
    RecordLog(home.ledger).rewrite(map(entry_bytes, history.chain))
    done = verify("--json")
    found = done.json["difference"]
    assert (done.code, found["kind"], found["height"], found["step"]) == (4, "entry", 3, 1)
    assert "0 of 1" in found["what"]
    assert "LEDGER-BROKEN" in done.err


def test_snapshot_that_does_not_follow_from_the_updates_is_reported(
    verify: Command, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The voters of this run multiply their momentum by slightly more than they should."""
    rules = policy(participants_min=1, snapshot_every=EVERY)
    run = publish(home, rules=rules, steps=99)
    apply = OuterState.apply
    with monkeypatch.context() as patched:
        patched.setattr(
            OuterState, "apply", lambda s, p, lr, mu, *on: apply(s, p, lr, mu * 1.01, *on)
        )
        history = make_history(home, run, STEPS)
    done = verify("--json")
    found = done.json["difference"]
    assert (done.code, found["kind"], found["step"]) == (4, "state", 2)
    assert (found["height"], found["digest"]) == (6, history.snapshots[2])
    assert "chunks differ, the first at byte 0" in found["what"]
    assert "AUDIT-DIFFERS" in done.err


def test_missing_parts_make_the_verification_incomplete_but_not_failed(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    path_of(home, history.updates[6]).unlink()
    done = verify("--json")
    assert done.code == 75
    assert done.json["good"] is True
    assert done.json["missing"] == {"kind": "update", "step": 6, "digest": history.updates[6]}
    assert (done.json["begun"], done.json["reached"]) == (0, 6)
    assert "AUDIT-PARTIAL" in done.err


def test_home_without_any_snapshot_says_which_one_to_fetch(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    for snapshot in (history.run.manifest.genesis, *history.snapshots.values()):
        path_of(home, snapshot).unlink()
    done = verify("--json")
    assert (done.code, done.json["begun"]) == (75, None)
    assert done.json["missing"]["step"] == 6
    assert "p2ptrain ckpt fetch" in done.err


def test_pruned_ledger_verifies_from_its_checkpoint_and_says_so(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    origin = prune_home(home, history.run, 4)
    assert origin is not None
    done = verify("--from", "oldest", "--json")
    assert (done.code, done.json["good"]) == (0, True)
    assert done.json["begins_at"] == str(origin.base.checkpoint)
    assert (done.json["begun"], done.json["reached"]) == (origin.base.step, STEPS)
    assert origin.words in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["another"], 3, "the run in this home is 'swarm', not 'another'"),
        (["--from", "there"], 2, "'there' is not a certified snapshot of this run"),
        (["--from", "3"], 2, "of outer steps 0, 2, 4, 6"),
    ],
)
def test_wrong_arguments_are_reported(
    verify: Command, history: WrittenHistory, words: list[str], code: int, said: str
) -> None:
    done = verify(*words)
    assert (done.code, said in done.err) == (code, True)
    assert verify(history.run.id[:12]).code == 0


def test_json_has_the_same_keys_for_every_result(
    verify: Command, home: Home, history: WrittenHistory
) -> None:
    good = verify("--json").json
    assert good["torn"] is None
    home.ledger.write_bytes(b"")
    bad = verify("--json").json
    assert list(good) == list(bad)
    assert json.dumps(bad["difference"])
