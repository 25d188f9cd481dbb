"""A part of p2ptrain imports only lower parts, and only a few parts import each heavy or
third-party package.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.sources import PACKAGE, Module, imports, modules

TIERS = """
ids
errors
encoding extras names private_file standard_error
address_group availability eviction open_files portmap rate_limit stranger_slots suggested_command
identity
config dataplane ipc kernels ledger store sync
data net observe ring run state swarm
proofs
trainer
peers
archive
prepare
node
doctor export notify simulation web
testing
demo
bench
cli
""".split("\n")[1:-1]
"""The tiers, lowest first. Parts on the same line do not import each other."""

RANKS = {part: rank for rank, parts in enumerate(TIERS) for part in parts.split()} | {"": 0}

DOORS = {
    "torch": {"trainer"},
    "libp2p": {"net"},
    "multiaddr": {"net"},
    "miniupnpc": {"portmap"},
    "trio": {"doctor", "net", "node", "web"},
    "anycorn": {"web"},
    "anyio": {"web"},
    "starlette": {"web"},
    "pydantic": {"config"},
    "typer": {"cli"},
    "rich": {"bench", "demo"},
    "msgpack": {"encoding"},
    "tokenizers": {"data"},
    "safetensors": {"trainer"},
    "segno": {"cli"},
    "tensorboardX": {"cli"},
    "transformers": {"trainer"},
    "cryptography": {"identity", "dataplane"},
}
"""The parts that import each third-party package. A part that is not listed must not import the
package, and every listed part does import it.
"""


def ours(name: str) -> str | None:
    """Return the part of p2ptrain that an imported name belongs to."""
    head, _, rest = name.partition(".")
    return rest.partition(".")[0] if head == "p2ptrain" else None


def upward(module: Module) -> list[str]:
    """Return the imports of `module` that neither go strictly down nor stay within its part."""
    return [
        f"{module.where} imports {name}"
        for name in imports(module)
        if (part := ours(name)) is not None
        and part in RANKS
        and part != module.part
        and RANKS[part] >= RANKS[module.part]
    ]


def test_every_part_has_a_rank() -> None:
    assert {module.part for module in modules()} == set(RANKS)


def test_imports_go_strictly_down() -> None:
    assert [fault for module in modules() for fault in upward(module)] == []


def test_imports_inside_functions_are_found() -> None:
    text = "def f():\n    from p2ptrain.node import main\n    import p2ptrain.cli\n"
    module = Module(modules()[0].path, "p2ptrain.ledger.core", text)
    assert [fault.split(" imports ")[1] for fault in upward(module)] == [
        "p2ptrain.node.main",
        "p2ptrain.cli",
    ]


@pytest.mark.parametrize("foreign", DOORS)
def test_third_party_package_is_imported_only_by_the_listed_parts(foreign: str) -> None:
    found = {
        module.part
        for module in modules()
        for name in imports(module)
        if name.partition(".")[0] == foreign
    }
    assert found == DOORS[foreign]


def test_architecture_page_shows_these_tiers() -> None:
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    assert "\n".join(TIERS) in page


def test_architecture_page_lists_the_importers_of_each_third_party_package() -> None:
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    lines = [f"{foreign:<14}{', '.join(sorted(parts))}" for foreign, parts in DOORS.items()]
    assert "\n".join(lines) in page


def test_ledger_needs_only_the_standard_library() -> None:
    allowed = {"p2ptrain.errors", "p2ptrain.ids", "p2ptrain.ledger"}
    foreign = [
        f"{module.where} imports {name}"
        for module in modules()
        if module.part == "ledger"
        for name in imports(module)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not any(name == each or name.startswith(each + ".") for each in allowed)
    ]
    assert foreign == []


WITHOUT_TORCH = ("p2ptrain.trainer.host", "p2ptrain.trainer.formats")


def modules_below(packages: tuple[str, ...]) -> list[str]:
    return [
        module.name
        for module in modules()
        if any(module.name.startswith(f"{package}.") for package in packages)
    ]


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("p2ptrain", {"torch", "libp2p", "trio", "numpy"}),
        ("p2ptrain.node.main", {"torch", "pydantic"}),
        pytest.param(
            ", ".join(modules_below(WITHOUT_TORCH)),
            {"torch", "libp2p", "trio"},
            id="p2ptrain.trainer.host and formats",
        ),
        ("p2ptrain.ledger", {"torch", "libp2p", "trio", "numpy", "cryptography"}),
        ("p2ptrain.run", {"torch", "libp2p", "trio", "numpy"}),
        ("p2ptrain.web.main", {"torch", "libp2p", "pydantic"}),
    ],
)
def test_importing_a_part_does_not_load_heavy_packages(imported: str, absent: set[str]) -> None:
    program = f"import sys, {imported}; print(*(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert absent.isdisjoint(done.stdout.split())
