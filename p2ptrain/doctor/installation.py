"""Checks of the installation: Python, the packages, and the native kernels.

Nothing here is imported before it is checked, so that a package that is missing or damaged becomes
a finding instead of a traceback.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import p2ptrain
from p2ptrain.doctor.finding import Finding, Tell, fault, good, warning

PYTHON_FIRST, PYTHON_LAST = (3, 11), (3, 13)
SET_UP = "run scripts/setup in p2ptrain's folder"
LOCK = Path(p2ptrain.__file__).parents[1] / "requirements.lock"
NOT_NEEDED = "# build and checks"
"""The line of the lock file after which only packages for developers follow."""

OWN_CHECK = {"torch"}
"""Packages that another check looks at."""

SHOWN_MAX = 4

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXACT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*==\s*([\w.+!]+)")


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """Versions by canonical name. `pinned` are the versions that p2ptrain was tested with, `exact`
    those without which it does not work."""

    needed: frozenset[str]
    exact: Mapping[str, str]
    pinned: Mapping[str, str]
    installed: Mapping[str, str]


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_python(version: tuple[int, int, int], kind: str, system: str) -> Finding:
    said = f"{kind} {'.'.join(map(str, version))} on {system}, p2ptrain {p2ptrain.__version__}"
    if PYTHON_FIRST <= version[:2] <= PYTHON_LAST and kind == "CPython" and system == "Linux":
        return good("python", said)
    return fault(
        "python",
        f"{said}: p2ptrain needs CPython 3.11 to 3.13 on Linux",
        fix="install such a Python, and run scripts/setup with P2PTRAIN_PYTHON set to it",
        code="INSTALLATION",
    )


def judge_packages(facts: PackageFacts) -> Finding:
    missing = sorted(each for each in facts.needed if each not in facts.installed)
    if missing:
        what = f"packages are missing: {_listed(missing)}"
        return fault("packages", what, fix=SET_UP, code="INSTALLATION")
    wrong = list(_others(facts.exact, facts.installed))
    if wrong:
        what = f"p2ptrain does not work with {_listed(wrong)}"
        return fault("packages", what, fix=SET_UP, code="INSTALLATION")
    others = list(_others(facts.pinned, facts.installed))
    if others:
        return warning(
            "packages",
            f"p2ptrain was not tested with {_listed(others)}",
            fix=f"if a node behaves strangely, {SET_UP}",
            code="INSTALLATION",
        )
    if not facts.pinned:
        return good("packages", f"all {len(facts.needed)} needed packages are installed")
    return good("packages", f"the {len(facts.pinned)} versions that p2ptrain was tested with")


def _others(wanted: Mapping[str, str], installed: Mapping[str, str]) -> Iterable[str]:
    for name, version in sorted(wanted.items()):
        if (here := installed.get(name)) not in (None, version):
            yield f"{name} {here} (tested: {version})"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    return ", ".join(texts[:SHOWN_MAX]) + more


def judge_kernels(variants: tuple[str, ...], wrong: str) -> Finding:
    """Judge the kernels that run here. `wrong` is the variant with a wrong result, if any."""
    if wrong:
        return fault(
            "kernels",
            f"the {wrong} kernels compute a wrong result on this processor",
            fix="delete the compiled kernels (p2ptrain/kernels/*.so) and run scripts/setup; if "
            "this line stays, test this machine's memory and processor",
            code="KERNELS",
        )
    rest = f" (also {', '.join(variants[1:])})" if variants[1:] else ""
    return good("kernels", f"{variants[0]}{rest}, with the same bits as the reference")


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def python(tell: Tell) -> None:
    version = sys.version_info[:3]
    tell(judge_python(version, platform.python_implementation(), platform.system()))


def packages(tell: Tell) -> None:
    tell(judge_packages(package_facts(LOCK)))


def package_facts(lock: Path) -> PackageFacts:
    """Return the packages that p2ptrain needs, with the versions in `lock`, if that file exists."""
    text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    pinned = dict(_exact(text.partition(NOT_NEEDED)[0].splitlines()))
    required = [each for each in _required() if ";" not in each]
    named = {canonical(found[0]) for each in required if (found := _NAME.match(each))}
    needed = (named | pinned.keys()) - OWN_CHECK
    here = {canonical(each.name): each.version for each in metadata.distributions() if each.name}
    return PackageFacts(frozenset(needed), dict(_exact(required)), pinned, here)


def _required() -> list[str]:
    """Return p2ptrain's own requirements; none if it runs from a folder and is not installed."""
    try:
        return metadata.requires("p2ptrain") or []
    except metadata.PackageNotFoundError:
        return []


def _exact(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        if found := _EXACT.match(line):
            yield canonical(found[1]), found[2]


def canonical(name: str) -> str:
    """Return the name under which package indexes know a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def kernels(tell: Tell) -> None:
    try:
        from p2ptrain.kernels import VARIANTS
    except ImportError as exc:
        what = f"the native kernels cannot be loaded: {exc}"
        tell(fault("kernels", what, fix=SET_UP, code="KERNELS"))
        return
    tell(judge_kernels(VARIANTS, _wrong_variant(VARIANTS)))


def _wrong_variant(variants: Iterable[str]) -> str:
    """Return the first variant that does not quantise as the reference does; "" if all do."""
    import numpy as np

    from p2ptrain.kernels import codec
    from p2ptrain.kernels.reference import ReferenceCodec

    vector = np.random.default_rng(0).standard_normal(1001, np.float32)
    ours = codec("int8", 64)
    expected, made = (np.zeros(ours.encoded_bytes(vector.size), np.uint8) for _ in range(2))
    ReferenceCodec("int8", 64).quantise(vector, expected)
    for variant in variants:
        ours.quantise(vector, made, variant=variant)
        if not np.array_equal(expected, made):
            return variant
    return ""


def network_library(tell: Tell) -> None:
    """Load libp2p. The checks of ports and addresses use it too."""
    importlib.import_module("p2ptrain.net")
    tell(good("network library", f"libp2p {metadata.version('libp2p')} can be loaded"))
