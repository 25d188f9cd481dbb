"""The estimated costs of a run agree with figures computed by hand, and doubtful settings cause
warnings to the organiser."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from p2ptrain.config.run_file import RunFile, parse_run_file
from p2ptrain.config.samples import sample
from p2ptrain.errors import ConfigError
from p2ptrain.prepare.run_advice import lints_of
from p2ptrain.prepare.run_cost import H100_BYTES, block_bytes, costs_of, sent_bytes
from p2ptrain.run.draft import model_spec
from p2ptrain.trainer.host.flops import flops_per_token, mfu

PEER = "12D3KooWEaGJfj8wwiy7s1AfSQS9VFxuXrUsBoEpA55DyRK8gsjx"


def run_with(name: str = "opendiloco_150m", **changes: Any) -> RunFile:
    """Return the run of the recipe `name`, with each `section__field` set to the given value."""
    tree = tomllib.loads(sample(name))
    for where, value in changes.items():
        section, _, field = where.partition("__")
        tree[section][field] = value
    return parse_run_file(tree)


def test_peer_sends_every_part_except_its_own_in_both_phases_of_a_reduce() -> None:
    assert [sent_bytes(1000, peers) for peers in (2, 4, 10)] == [1000, 1500, 1800]


def test_costs_of_a_run_match_those_computed_by_hand() -> None:
    run = run_with(codec__name="fp32", outer__steps=100)
    costs = costs_of(run, [4], tokens_per_s=1000.0)
    numel = 214_983_680  # All sizes are multiples of 16, so there is no padding.
    assert (costs.update_bytes, costs.snapshot_bytes) == (4 * numel, 8 * numel)
    # θ, m, local weights, two updates, and the contribution that the node has claimed.
    assert (costs.node.theta, costs.node.total) == (4 * numel, 6 * 4 * numel)
    assert costs.step_tokens == 500 * 512 * 1024
    assert costs.inner_s == pytest.approx(262_144.0)
    slow, _, _ = costs.plans
    assert (slow.exchange.sent_bytes, slow.mbit) == (6 * numel, 10)
    assert slow.reduce_s == pytest.approx(6 * numel * 8 / 10e6)
    assert slow.days == pytest.approx(100 * (262_144 + slow.reduce_s) / 86_400)
    assert slow.utilisation == pytest.approx(262_144 / (262_144 + slow.reduce_s))
    assert slow.tokens == 4 * 100 * costs.step_tokens


def test_peer_without_a_measured_speed_is_assumed_to_have_a_typical_mfu() -> None:
    """The run has a context of 8192 tokens. So the test would notice if the estimate and `mfu`
    counted the operations of attention differently: that would change the result by an eighth."""
    run = run_with("intellect1_10b")
    costs = costs_of(run, [2])
    assert mfu(model_spec(run), "NVIDIA H100", 4, costs.tokens_per_s) == pytest.approx(0.4)
    assert costs.step_operations == costs.step_tokens * flops_per_token(model_spec(run))


def test_peer_is_assumed_to_have_enough_gpus_for_its_trainer() -> None:
    large, small = (costs_of(run_with(name), [2]) for name in ("intellect1_10b", "tiny"))
    assert (small.h100s, large.h100s) == (1, 4)
    assert 3 * H100_BYTES < large.trainer_bf16.least <= 4 * H100_BYTES
    assert "inner.steps" in fields(run_with("intellect1_10b"))


def test_costs_of_a_streaming_run_count_one_fragment_and_the_overlap() -> None:
    """The run averages one of five fragments per outer step, while training continues."""
    whole = costs_of(run_with(codec__name="fp32"), [4], tokens_per_s=1000.0)
    tree = tomllib.loads(sample("opendiloco_150m"))
    tree["codec"]["name"] = "fp32"
    tree["sync"] = {"fragments": 5, "overlap_steps": 1, "mixing": 0.5}
    cut = costs_of(parse_run_file(tree), [4], tokens_per_s=1000.0)
    assert (5 * cut.update_bytes, 5 * cut.step_tokens) == (whole.update_bytes, whole.step_tokens)
    for all_at_once, in_turns in zip(whole.plans, cut.plans, strict=True):
        assert in_turns.overlap_s == 512 * 1024 / 1000.0
        assert in_turns.reduce_s == pytest.approx(all_at_once.reduce_s / 5)
        assert in_turns.waited_s == max(0.0, in_turns.reduce_s - 512 * 1024 / 1000.0)
    assert cut.plans[-1].utilisation == 1.0 > whole.plans[-1].utilisation


def test_error_feedback_costs_the_node_memory_for_two_more_vectors() -> None:
    plain, kept = (costs_of(run_with(codec__feedback=each), [2]).node for each in (False, True))
    assert kept.residual == 8 * 214_983_680
    assert kept.total - plain.total == kept.residual - plain.contribution  # Without claims.


def late(**sync: Any) -> RunFile:
    """Return a run whose averages are applied one whole outer step late."""
    tree = tomllib.loads(sample("opendiloco_150m"))
    tree["sync"] = {"overlap_steps": tree["inner"]["steps"], **sync}
    return parse_run_file(tree)


def test_eager_trainer_keeps_three_more_vectors() -> None:
    """In an eager run, a peer applies its own newest work before the mean arrives."""
    plain, eager = (costs_of(late(eager=each), [2]).trainer_bf16 for each in (False, True))
    assert (plain.eager, eager.eager) == (0, 3 * 4 * 214_983_680)
    assert eager.least - plain.least == eager.eager


def test_estimated_size_of_a_block_is_exact() -> None:
    import numpy as np

    from p2ptrain.data.blocks import encode_block

    run = run_with("tiny")
    rows = np.zeros((run.inner.batch_sequences, run.model.sequence + 1), dtype=np.int64)
    assert block_bytes(run) == len(encode_block(rows, run.model.vocab))


def fields(run: RunFile, *seeds: str, tokens_per_s: float | None = None) -> list[str]:
    """Return the fields of the run file that cause warnings."""
    return [lint.field for lint in lints_of(run, costs_of(run, [2, 8], tokens_per_s), seeds)]


@pytest.mark.parametrize(
    ("quorum", "founders", "warns"),
    [
        ("majority", 2, True),
        ("majority", 3, False),
        ("two-thirds", 3, True),
        ("two-thirds", 4, False),
    ],
)
def test_open_run_with_too_few_founders_gets_a_warning(
    quorum: str, founders: int, *, warns: bool
) -> None:
    for admission in ("open", "allowlist"):
        run = run_with(run__admission=admission, policy__quorum=quorum)
        lints = lints_of(run, costs_of(run, [2]), founders=founders)
        found = [lint.words for lint in lints if lint.field == "run.admission"]
        assert len(found) == (warns and admission == "open")
        assert all(
            f"{founders} founders the loss of one can stop the run" in words for words in found
        )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"inner__batch_sequences": 2100}, "inner.batch_sequences"),
        ({"outer__steps": 20}, "outer.steps"),
        ({"inner__warmup_steps": 30_000}, "inner.warmup_steps"),
        ({"inner__steps": 10, "outer__steps": 8800}, "inner.steps"),
        ({"inner__batch_sequences": 4}, "model"),
        ({"policy__encryption": "none"}, "policy.encryption"),
        ({"run__admission": "open"}, "run.admission"),
        ({"policy__participants_min": 1}, "policy.participants_min"),
        ({"policy__snapshot_every": 9}, "policy.snapshot_every"),
        ({"policy__influence_max": 1.1}, "policy.influence_max"),
        ({"policy__influence_max": 2.9}, "policy.influence_max"),
        ({"model__vocab": 32_001}, "model.vocab"),
        ({"model__heads": 2, "model__kv_heads": 2}, "model.heads"),
    ],
)
def test_settings_that_an_organiser_may_regret_are_reported(
    changes: dict[str, Any], field: str
) -> None:
    assert field not in fields(run_with())
    assert field in fields(run_with(**changes))


@pytest.mark.parametrize(
    ("optimizer", "momentum", "warns"),
    [("muon", 0.9, True), ("muon", 0.5, True), ("muon", 0.2, False), ("adamw", 0.9, False)],
)
def test_muon_with_outer_momentum_gets_a_warning(
    optimizer: str, momentum: float, *, warns: bool
) -> None:
    run = run_with(inner__optimizer=optimizer, outer__momentum=momentum)
    assert ("outer.momentum" in fields(run)) == warns


@pytest.mark.parametrize(
    ("codec", "peers", "warns"), [("int4", 8, True), ("int4", 4, False), ("int8", 8, False)]
)
def test_int4_in_a_long_ring_gets_a_warning(codec: str, peers: int, *, warns: bool) -> None:
    run = run_with(codec__name=codec)
    words = [lint.words for lint in lints_of(run, costs_of(run, [2, peers]))]
    assert any("int4 loses precision in a ring" in each for each in words) == warns


def test_run_is_long_enough_if_each_fragment_is_averaged_often_enough() -> None:
    """streaming_1b has 10 fragments; every 10 inner steps, the next fragment is averaged."""
    (few,) = (
        lint.words
        for run in [run_with("streaming_1b", outer__steps=590)]
        for lint in lints_of(run, costs_of(run, [2]))
        if lint.field == "outer.steps"
    )
    assert few.startswith(
        "the run has 590 outer steps, in which each of 10 fragments is averaged 59 times;"
    )
    assert "outer.steps" not in fields(run_with("streaming_1b", outer__steps=600))
    long = {"outer__steps": 600, "inner__warmup_steps": 1201}
    assert "inner.warmup_steps" in fields(run_with("streaming_1b", **long))
    short = long | {"inner__warmup_steps": 1200}
    assert "inner.warmup_steps" not in fields(run_with("streaming_1b", **short))


def snapshot_warnings(fragments: int, every: int, codec: str = "int8") -> list[str]:
    """Return the warnings about the interval between snapshots, `every` outer steps."""
    tree = tomllib.loads(sample("opendiloco_150m"))
    tree["sync"] = {"fragments": fragments}
    tree["policy"]["snapshot_every"] = every
    tree["codec"]["name"] = codec
    run = parse_run_file(tree)
    lints = lints_of(run, costs_of(run, [2]))
    return [lint.words for lint in lints if lint.field == "policy.snapshot_every"]


def test_snapshot_interval_should_average_all_fragments_several_times() -> None:
    (words,) = snapshot_warnings(5, 19)
    assert words.startswith(
        "the run takes a snapshot every 19 outer steps, and 5 fragments take turns"
    )
    assert words.endswith("use 20 or more")
    assert snapshot_warnings(5, 20) == snapshot_warnings(1, 1) == []


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "int4"])
def test_some_snapshot_interval_causes_no_warning_with_any_codec(codec: str) -> None:
    assert any(snapshot_warnings(5, every, codec) == [] for every in range(1, 41))


def test_error_is_listed_before_warnings_and_names_a_value_that_works() -> None:
    run = run_with(inner__batch_sequences=2100, outer__steps=20)
    first, *_ = lints_of(run, costs_of(run, [2]))
    assert (first.field, first.is_fault) == ("inner.batch_sequences", True)
    fits = int(first.words.split("at most ")[1].split()[0])
    assert block_bytes(run_with(inner__batch_sequences=fits)) <= 4 * 2**20
    assert block_bytes(run_with(inner__batch_sequences=fits + 2)) > 4 * 2**20


def test_duration_of_a_small_run_is_judged_only_if_a_speed_is_given() -> None:
    assert "inner.steps" not in fields(run_with("metagene_mini"))
    assert "inner.steps" in fields(run_with("metagene_mini"), tokens_per_s=1e6)
    assert "inner.steps" not in fields(run_with("metagene_mini"), tokens_per_s=1e3)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("/ip4/127.0.0.1", "this machine's own"),
        ("/ip4/0.0.0.0", "this machine's own"),
        ("/ip4/192.168.1.7", "private network"),
        ("/ip6/fe80::1", "private network"),
        ("/ip4/100.64.1.1", "carrier NAT"),
        ("/ip4/203.0.113.7", "no machine has it"),
        ("/ip4/9.9.9.9", None),
        ("/dns4/seed.example", None),
    ],
)
def test_address_that_cannot_be_dialled_is_reported(host: str, said: str | None) -> None:
    run = run_with()
    found = lints_of(run, costs_of(run, [2]), [f"{host}/tcp/4201/p2p/{PEER}"])
    words = [lint.words for lint in found if lint.field == "seed"]
    assert len(words) == (said is not None)
    assert said is None or said in words[0]


def test_malformed_address_is_refused() -> None:
    run = run_with()
    with pytest.raises(ConfigError):
        lints_of(run, costs_of(run, [2]), ["/ip4/127.0.0.1/tcp/4201"])
