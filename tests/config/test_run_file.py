"""An error in a run file is reported with the field, its value, and the allowed values."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.config.run_file import RunFile, load_run_file, parse_run_file
from p2ptrain.config.samples import sample, sample_names
from p2ptrain.errors import ConfigError


def tiny_with(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the tiny run's tables with "section.field" set to a value, or removed if the value is
    None."""
    tree = copy.deepcopy(tomllib.loads(sample("tiny")))
    for where, value in changes.items():
        section, _, name = where.partition(".")
        if not name:
            tree[section] = value
        elif value is None:
            del tree[section][name]
        else:
            tree[section][name] = value
    return tree


@pytest.mark.parametrize("name", sample_names())
def test_sample_run_files_are_valid(name: str) -> None:
    run = parse_run_file(tomllib.loads(sample(name)))
    assert run.run.name == name.replace("_", "-")
    assert run.run.admission == "allowlist"
    assert run.inner.warmup_steps < run.inner.steps * run.outer.steps


@pytest.mark.parametrize("name", sample_names())
def test_files_under_configs_are_the_samples(name: str) -> None:
    root = Path(__file__).parents[2]
    assert (root / "configs" / f"{name}.toml").read_text() == sample(name)


@pytest.mark.parametrize("name", sample_names())
def test_joiners_in_every_sample_start_with_members_optimizer_states(name: str) -> None:
    assert parse_run_file(tomllib.loads(sample(name))).inner.join_optimizer == "donors"


def test_at_least_half_of_the_demos_settings_have_a_comment() -> None:
    lines = [line for line in sample("demo").splitlines() if "=" in line.split("#")[0]]
    unexplained = [line for line in lines if "#" not in line]
    assert len(unexplained) <= len(lines) // 2
    assert sample("demo").startswith("# ")


def test_demo_file_lists_every_optional_setting_with_its_default() -> None:
    """The other samples say that demo.toml explains each setting."""
    sections = re.split(r"^\[(\w+)\]", sample("demo"), flags=re.MULTILINE)[1:]
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    for section, holder in RunFile.model_fields.items():
        assert isinstance(holder.annotation, type)
        for name, field in holder.annotation.model_fields.items():
            line = re.search(rf"^(# )?{name} = ([^#\n]+)(#.*)?$", texts[section], re.MULTILINE)
            assert line is not None, f"{section}.{name}"
            if line[1] or field.is_required():
                continue
            value = tomllib.loads(f"x = {line[2]}")["x"]
            value = tuple(value) if isinstance(value, list) else value
            said = re.search(r"\((\S+) if left out\)", line[3] or "")
            unset = tomllib.loads(f"x = {said[1]}")["x"] if said else value
            assert unset == field.default, f"{section}.{name}"


def test_error_for_an_unknown_sample_lists_the_samples() -> None:
    with pytest.raises(ConfigError) as caught:
        sample("../errors")
    assert caught.value.do == f"choose {' or '.join(sample_names())}"
    assert {"demo", "tiny"} <= set(sample_names())


WRONG = [
    ({"sync": {"fragments": 2}, "inner.steps": 3}, "sync.fragments 2 must divide inner.steps 3"),
    (
        {"sync": {"fragments": 4}, "inner.steps": 8},
        "sync.fragments 4 does not fit 2 layers and 1 embedding matrix: choose 2 to 3",
    ),
    ({"sync": {"overlap_steps": 3}}, "sync.overlap_steps 3 is longer than an outer step"),
    (
        {"sync": {"overlap_steps": 2, "mixing": 0.5}},
        "sync.mixing must be 0 if sync.overlap_steps is",
    ),
    ({"sync": {"mixing": 0.5}}, "sync: mixing needs overlap_steps"),
    (
        {"inner.join_optimizer": "donors", "inner.betas": [0.99, 0.95]},
        'inner: with join_optimizer = "donors", the square',
    ),
    (
        {"inner.betas": [0.99, 0.95]},
        'inner: with join_optimizer = "donors", the square of the first of betas must be below '
        'the second; they are 0.99 and 0.95: change them, or set join_optimizer = "fresh"',
    ),
    (
        {"sync": {"overlap_steps": 1, "eager": True}},
        "sync.eager needs sync.overlap_steps = inner.steps = 2",
    ),
    (
        {"sync": {"merge": "rda"}},
        "sync: merge = 'rda' is no longer supported: peers take the plain mean; delete the line",
    ),
    ({"model.width": None}, "model.width is missing"),
    ({"model.width": "wide"}, "model.width is 'wide'; it should be a valid integer"),
    ({"model.width": 32.5}, "model.width is 32.5; it should be a valid integer"),
    ({"model.width": True}, "model.width is True; it should be a valid integer"),
    ({"model.width": 0}, "model.width is 0; it should be greater than or equal to 1"),
    ({"model.width": 30}, "model: width 30 must be an even multiple of heads 4"),
    (
        {"model.width": 2**23},
        "model: the model has 4.2e+14 parameters; a run may have at most 1.1e+12",
    ),
    ({"model.kv_heads": 3}, "model: kv_heads 3 must divide heads 4"),
    ({"model.vocab": 100}, "model.vocab is 100; it should be greater than or equal to 257"),
    ({"model.widht": 32}, "model.widht is not a setting; did you mean width?"),
    ({"modle": {}}, "modle is not a setting; did you mean model?"),
    ({"inner.zzz": 1}, "inner.zzz is not a setting"),
    ({"inner.lr": -1.0}, "inner.lr is -1.0; it should be greater than 0"),
    ({"inner.lr": float("nan")}, "inner.lr is nan; it should be a finite number"),
    ({"inner.schedule": "step"}, "inner.schedule is 'step'; it should be 'wsd', 'cosine' or"),
    ({"inner.betas": [0.9]}, "inner.betas.1 is missing"),
    ({"inner.warmup_steps": 13}, "inner.warmup_steps 13 is longer than the whole run"),
    ({"outer.lr": 101}, "outer.lr is 101; it should be less than or equal to 100"),
    ({"policy.grace_s": 1e5}, "policy.grace_s is 100000.0; it should be less than or equal to"),
    ({"policy.patience_s": 1e5}, "policy.patience_s is 100000.0; it should be less than or"),
    ({"policy.round_timeout_s": 1e-3}, "policy.round_timeout_s is 0.001; it should be greater"),
    ({"outer.momentum": 1.0}, "outer.momentum is 1.0; it should be less than 1"),
    ({"policy.quorum": "all"}, "policy.quorum is 'all'; it should be 'majority' or 'two-thirds'"),
    (
        {"policy.quorum_loss": "vote"},
        "policy.quorum_loss is 'vote'; it should be 'wait' or 'branch'",
    ),
    (
        {"policy.branch_after_s": 60.0},
        "policy: branch_after_s has no effect without quorum_loss = ",
    ),
    ({"policy.participants_min": 0}, "policy.participants_min is 0; it should be greater"),
    (
        {"codec": {"name": "zip"}},
        "codec.name is 'zip'; it should be 'fp32', 'fp16', 'int8' or 'int4'",
    ),
    ({"run.name": "Two Words"}, "run.name is 'Two Words'; it should have only a-z"),
    ({"run": 3}, "run should be a table, which begins with a line [run]"),
    ({"run": [{"name": "tiny"}]}, "run should be a table, which begins with a line [run]"),
    ({"sync": {"fragments": 3}}, "sync.fragments 3 must divide inner.steps 2"),
    ({"data.source": ""}, "data.source is ''; it should have at least 1 character"),
    (
        {"inner.betas": [0.9, 0.95, 0.99]},
        "inner.betas is (0.9, 0.95, 0.99); it should have at most 2 items",
    ),
]


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[text[:40] for _, text in WRONG])
def test_wrong_setting_is_reported(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run_file(tiny_with(changes), name="my.toml")
    assert caught.value.what.startswith(f"my.toml: {text}")
    assert caught.value.do == "correct my.toml"
    assert caught.value.code == "CONFIG"


def test_several_errors_are_listed_and_the_list_is_bounded() -> None:
    two = {"model.width": 0, "inner.lr": -1.0}
    with pytest.raises(ConfigError) as caught:
        parse_run_file(tiny_with(two), name="my.toml")
    assert caught.value.what == "my.toml: 2 settings are wrong"
    assert [line.split(" ")[0] for line in caught.value.evidence] == ["model.width", "inner.lr"]
    with pytest.raises(ConfigError) as caught:
        parse_run_file({f"x{number}": 1 for number in range(20)})
    assert caught.value.evidence[-1] == "and 18 more"


def test_codec_has_its_own_block_size_unless_the_file_sets_one() -> None:
    for name, block in [("fp32", 256), ("fp16", 256), ("int8", 256), ("int4", 64)]:
        assert parse_run_file(tiny_with({"codec": {"name": name}})).codec.block == block
        given = {"name": name, "block": 128, "feedback": True}
        assert parse_run_file(tiny_with({"codec": given})).codec.model_dump() == given


def test_merge_mean_of_earlier_versions_is_still_accepted() -> None:
    given = tiny_with({"sync": {"fragments": 1, "merge": "mean"}})
    assert parse_run_file(given) == parse_run_file(tiny_with({"sync": {"fragments": 1}}))


def test_integer_is_accepted_where_a_float_is_expected() -> None:
    run = parse_run_file(tiny_with({"inner.lr": 1, "inner.betas": [0, 0.95]}))
    assert (run.inner.lr, run.inner.betas) == (1.0, (0.0, 0.95))


def test_error_for_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_file(tmp_path / "run.toml")
    assert "cannot be read: No such file" in caught.value.what
    assert caught.value.do == "create a run file with: p2ptrain run new --out run.toml"


@pytest.mark.parametrize(
    "data",
    [b"[run\n", b"\xff\xfe", b"a = 1\na = 2\n", b"a = " + b"[" * 5000],
    ids=["table", "bytes", "twice", "deep"],
)
def test_file_that_is_not_toml_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_run_file(path)
    assert caught.value.what.startswith(f"{path} is not TOML")


def test_sample_loads_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(sample("demo"))
    assert load_run_file(path) == parse_run_file(tomllib.loads(sample("demo")))
    path.write_text(sample("demo"), encoding="utf-8-sig")
    assert load_run_file(path) == parse_run_file(tomllib.loads(sample("demo")))
