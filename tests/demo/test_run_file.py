"""The demo uses the sample run file, but joiners do not fetch optimizer states over its slow
links."""

from __future__ import annotations

from pathlib import Path

from p2ptrain.config.run_file import load_run_file
from p2ptrain.config.samples import sample
from p2ptrain.demo.run_file import written


def test_demo_runs_the_sample_with_fresh_optimizers_for_joiners(tmp_path: Path) -> None:
    ours = load_run_file(written(tmp_path / "folder"))
    (tmp_path / "demo.toml").write_text(sample("demo"))
    theirs = load_run_file(tmp_path / "demo.toml")
    assert (ours.inner.join_optimizer, theirs.inner.join_optimizer) == ("fresh", "donors")
    inner = theirs.inner.model_copy(update={"join_optimizer": "fresh"})
    assert ours == theirs.model_copy(update={"inner": inner})
