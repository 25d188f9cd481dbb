"""Amendments: what an organiser can change, how the run continues, and what is refused."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.archive.outer_step import inner_rates
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ipc.learning_rate import learning_rate
from p2ptrain.ipc.trainer_config import Schedule
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.run import Amendment, Leg, Run, Signed, SignedAmendment
from p2ptrain.run.amendment import AMENDMENT_BYTES_MAX
from p2ptrain.run.files import amendments_in, load_amendments, save_amendments
from p2ptrain.run.reading import plain
from p2ptrain.sync import SyncSpec
from tests.run.conftest import tiny_run

ORGANISER = Identity.from_seed(b"o" * 32)
RUN = tiny_run(ORGANISER)
INNER = RUN.manifest.inner
MANY = tuple(sorted(Identity.from_seed(bytes([number]) * 32).peer for number in range(17)))


def amendment(**changes: object) -> Amendment:
    return Amendment(RUN.id, 1, 2, **({"lr": 0.001} | changes))  # type: ignore[arg-type]


def signed(**changes: object) -> SignedAmendment:
    return SignedAmendment.publish(ORGANISER, amendment(**changes), RUN)


def test_amendment_survives_encoding() -> None:
    made = signed(inner_steps=INNER.steps * 2, codec="int4", codec_block=64)
    assert SignedAmendment.from_bytes(made.to_bytes(), RUN) == made
    assert made.terms == Terms(1, 2, made.digest, INNER.steps * 2)
    assert signed().terms.blocks is None
    assert len(made.to_bytes()) < AMENDMENT_BYTES_MAX / 2


def test_amendment_without_delegates_has_the_same_fields_as_before() -> None:
    names = {"run", "number", "step", "lr", "inner_steps", "codec", "codec_block"}
    payload = unpack(signed().signed.payload, bytes_max=AMENDMENT_BYTES_MAX)
    assert payload.keys() == names | {"outer_lr", "outer_momentum"}  # type: ignore[attr-defined]


def test_delegates_are_signed_agreed_and_in_force() -> None:
    anybody = dataclasses.replace(RUN.manifest, admission="open")
    run = Run.publish(ORGANISER, anybody)
    both = Amendment(run.id, 1, 2, admitters=MANY[:16], voters=MANY[1:])
    made = SignedAmendment.publish(ORGANISER, both, run)
    assert SignedAmendment.from_bytes(made.to_bytes(), run) == made
    assert made.terms == Terms(1, 2, made.digest, voters=MANY[1:])
    assert "peers with a delegated vote" in both.words
    revoked = Amendment(run.id, 3, 9, admitters=())
    first = Leg(run.manifest).amended(both)
    legs = [first, first.amended(Amendment(run.id, 2, 4, lr=0.1)), first.amended(revoked)]
    assert [leg.admitters for leg in legs] == [MANY[:16], MANY[:16], ()]
    assert "admit volunteers none" in revoked.words


def test_votes_are_delegated_only_in_open_runs_and_only_to_others() -> None:
    with pytest.raises(ValueError, match="members of this run earn their votes"):
        amendment(voters=MANY[:1]).check(RUN.manifest)
    anybody = dataclasses.replace(RUN.manifest, admission="open")
    with pytest.raises(ValueError, match="no founder, since founders vote"):
        amendment(voters=(ORGANISER.peer,)).check(anybody)


def test_values_that_are_not_amended_stay_unchanged() -> None:
    first = Leg(RUN.manifest).amended(amendment(codec="fp16"))
    second = first.amended(Amendment(RUN.id, 2, 5, outer_lr=0.5, outer_momentum=0.8))
    manifest = RUN.manifest
    assert second == Leg(
        dataclasses.replace(
            manifest,
            inner=dataclasses.replace(INNER, lr=0.001),
            codec=dataclasses.replace(manifest.codec, name="fp16"),
            outer=dataclasses.replace(manifest.outer, lr=0.5, momentum=0.8),
        ),
        step=5,
        inner_step=5 * INNER.steps,
        number=2,
    )


def test_inner_steps_are_counted_over_the_entire_run() -> None:
    leg = Leg(RUN.manifest).amended(amendment(inner_steps=3 * INNER.steps))
    assert leg.first_inner_step(2) == 2 * INNER.steps
    assert leg.first_inner_step(4) == 8 * INNER.steps
    assert leg.manifest.blocks_per_lease == 3 * INNER.steps


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_schedule_counts_outer_steps_however_often_h_changes(factors: list[int]) -> None:
    legs = [Leg(RUN.manifest)]
    for number, factor in enumerate(factors, 1):
        change = Amendment(RUN.id, number, number, inner_steps=factor * INNER.steps)
        legs.append(legs[-1].amended(change))
    for leg, after in zip(legs, [*legs[1:], None], strict=True):
        rates, end = inner_rates(leg), RUN.manifest.outer.steps if after is None else after.step
        for step in range(leg.step, end + 1):
            assert rates.schedule_step(leg.first_inner_step(step)) == step * INNER.steps
        assert leg.manifest.inner.total_steps == INNER.total_steps


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("factor", [2, 5])
def test_change_of_h_does_not_make_the_learning_rate_jump(schedule: Schedule, factor: int) -> None:
    """H changes during the schedule's decay, where a jump would be largest."""
    inner = dataclasses.replace(INNER, steps=4, warmup_steps=0, total_steps=400, schedule=schedule)
    outer = dataclasses.replace(RUN.manifest.outer, steps=100)
    before = Leg(dataclasses.replace(RUN.manifest, inner=inner, outer=outer))
    leg = before.amended(Amendment(RUN.id, 1, 90, inner_steps=4 * factor))
    first = leg.first_inner_step(90)
    around = [
        learning_rate(inner, first - 1),
        *(learning_rate(inner, inner_rates(leg).schedule_step(first + at)) for at in range(factor)),
    ]
    assert around[0] > around[1] > 0.9 * around[0]
    assert set(around[1:]) == {learning_rate(inner, 360)}
    last = inner_rates(leg).schedule_step(leg.first_inner_step(100) - 1)
    assert learning_rate(inner, last) == learning_rate(inner, 399)


def test_lease_covers_h_divided_by_fragments_plus_the_overlap() -> None:
    inner = dataclasses.replace(INNER, steps=4)
    manifest = dataclasses.replace(
        RUN.manifest, inner=inner, sync=SyncSpec(fragments=2, overlap_steps=1)
    )
    run = Run.publish(ORGANISER, manifest)
    made = Amendment(run.id, 1, 2, inner_steps=8)
    assert SignedAmendment.publish(ORGANISER, made, run).terms.blocks == 5
    for steps in (3, 0):
        with pytest.raises(ValueError):
            SignedAmendment.publish(ORGANISER, Amendment(run.id, 1, 2, inner_steps=steps), run)


def test_run_with_averages_one_step_late_cannot_change_h() -> None:
    late = dataclasses.replace(RUN.manifest, sync=SyncSpec(overlap_steps=INNER.steps))
    run = Run.publish(ORGANISER, late)
    with pytest.raises(ValueError, match="inner_steps"):
        Amendment(run.id, 1, 2, inner_steps=2 * INNER.steps).check(run.manifest)


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": None},
        {"lr": 0.0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"lr": 1e9},
        {"inner_steps": 0},
        {"codec": "int3"},
        {"codec_block": 1},
        {"codec_block": 1 << 20},
        {"outer_lr": 0.0},
        {"outer_momentum": 1.0},
        {"admitters": MANY},
        {"voters": MANY[1::-1]},
        {"voters": ("a peer",)},
    ],
    ids=str,
)
def test_invalid_amendment_cannot_be_made(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        amendment(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"number": 2**60},
        {"number": "1"},
        {"step": 0},
        {"step": RUN.manifest.outer.steps},
        {"lr": "fast"},
        {"lr": True},
        {"lr": None},
        {"inner_steps": 1.5},
        {"inner_steps": RUN.manifest.data.train_blocks + 1},
        {"codec": 8},
        {"codec": "int3"},
        {"more": 1},
        {"admitters": None},
        {"admitters": "a peer"},
        {"admitters": [ORGANISER.peer, ORGANISER.peer]},
        {"voters": ["a peer"]},
        {"voters": [ORGANISER.peer]},
    ],
    ids=str,
)
def test_malformed_amendment_is_refused_although_it_is_signed(changes: dict[str, object]) -> None:
    value = plain(amendment(), optional=("admitters", "voters")) | changes
    document = Signed.by(ORGANISER, "amendment", pack(value))
    with pytest.raises(RemoteProtocolError):
        SignedAmendment.from_bytes(document.to_bytes(), RUN)


def test_list_of_amendments_is_accepted_completely_or_not_at_all() -> None:
    good = signed()
    assert amendments_in(pack([good.to_bytes()]), RUN) == (good,)
    for bad in (pack([good.to_bytes(), b"x"]), pack({}), pack([1]), b"", pack([[good.to_bytes()]])):
        with pytest.raises(RemoteProtocolError):
            amendments_in(bad, RUN)


def test_saved_amendments_are_loaded_and_damage_is_reported(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("home") / "amendments.signed"
    assert load_amendments(path, RUN) == ()
    save_amendments(path, [signed()])
    assert load_amendments(path, RUN) == (signed(),)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError) as caught:
        load_amendments(path, RUN)
    assert caught.value.code == "RUN-FILE"


def test_two_processes_that_save_at_the_same_time_do_not_conflict(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("home") / "amendments.signed"
    first, second = signed(), signed(lr=0.002)
    other = multiprocessing.get_context("spawn").Process(
        target=save_amendments, args=(path, [second])
    )

    def fsync(descriptor: int) -> None:
        if other.pid is None:
            other.start()
            other.join()
            assert other.exitcode == 0
            assert load_amendments(path, RUN) == (second,)
        os.fsync(descriptor)

    save_amendments(path, [first], fsync=fsync)
    assert load_amendments(path, RUN) == (first,)
    assert list(path.parent.iterdir()) == [path]
