"""The run files that come with p2ptrain, used by `p2ptrain run new`."""

from __future__ import annotations

from importlib.resources import files

from p2ptrain.errors import ConfigError


def sample_names() -> list[str]:
    """Return the names of the samples, such as ["demo", "tiny"]."""
    folder = files("p2ptrain.config") / "run_files"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir())


def sample(name: str) -> str:
    """Return the commented TOML of the sample `name`. Raises ConfigError: there is no such
    sample."""
    if name not in sample_names():
        do = f"choose {' or '.join(sample_names())}"
        raise ConfigError(f"there is no sample {name!r}", do=do)
    return (files("p2ptrain.config") / "run_files" / f"{name}.toml").read_text(encoding="utf-8")
