"""Only the folder that owns a state object changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import Module, modules

STATE = "p2ptrain.node.state."

OWNERS = {
    "Alerts": "control",
    "Blobs": "outer_state",
    "EventQueue": "consensus",
    "Forwarding": "forwarding",
    "Identities": "joining",
    "JoinRequests": "joining",
    "LedgerPort": "consensus",
    "NodeState": "control",
    "OptimizerSharing": "optimizer_sharing",
    "Outer": "outer_state",
    "OwnHeartbeat": "gossip",
    "PortMappings": "port_mapping",
    "Punching": "punching",
    "ReduceState": "reduce",
    "Relaying": "relaying",
    "TrainerState": "training",
}
"""The folder of `p2ptrain/node` that changes each state object."""

FOR_ALL = {
    "Alerts.show",
    "Alerts.clear",
    "Blobs.ask_scrub",
    "NodeState.note_report",
    "NodeState.set_state",
    "NodeState.set_state_unless_training",
    "OwnHeartbeat.send_now",
    "PortMappings.note_observed",
    "Punching.note_failed",
    "Punching.note_reached",
    "ReduceState.note_liar",
    "Relaying.note_fault",
    "Relaying.note_reached",
    "Relaying.note_success",
    "TrainerState.discard_work",
}
"""Methods that change an object and that any folder may call."""

CONSUMING = {"EventQueue.next_event", "EventQueue.next_event_nowait"}
"""Methods that only the owner may call, although they do not assign to a field."""

FIELDS_MAX = 20
"""Maximum number of fields of a state object. The context is a state object too."""

CHANGING = frozenset(
    "add append clear discard extend insert pop popitem remove set setdefault update".split()
)
"""Methods that change a container or event."""


def state_classes() -> dict[str, ast.ClassDef]:
    """Return the classes of `node/state` by name."""
    return {
        node.name: node
        for module in modules()
        if module.name.startswith(STATE)
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }


def fields_of(found: ast.ClassDef) -> list[str]:
    return [
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def handle_of(name: str) -> str:
    """Return the name of the field that holds an object of this class: a field of the context, of
    its ledger port or of its peer directory.
    """
    for holder in ("Context", "LedgerPort", "PeerDirectory"):
        for node in state_classes()[holder].body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == name:
                return ast.unparse(node.target)
    raise AssertionError(f"the context does not hold {name}")


def changed(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that a statement or call changes: x.a = 1, x.a[0] = 1, x.a.add(1)."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value] if node.func.attr in CHANGING else []
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            while isinstance(each, ast.Subscript):
                each = each.value
            if isinstance(each, ast.Attribute):
                yield each


def methods_of_owner(found: ast.ClassDef) -> set[str]:
    """Return the methods of a state object that only its owner may call: those that change its
    fields.
    """
    changing = {
        method.name
        for method in found.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(method)
        if any(ast.unparse(each.value) == "self" for each in changed(node))
    }
    own = {f"{found.name}.{name}" for name in changing} | CONSUMING
    return {each.split(".")[1] for each in own - FOR_ALL if each.startswith(f"{found.name}.")}


def holder_name(attribute: ast.Attribute) -> str:
    """Return the name just before an attribute: `outer` in `context.outer.step` and in
    `outer.step`.
    """
    value = attribute.value
    return value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")


def trespasses(module: Module) -> Iterator[str]:
    """Yield the places where `module` changes a state object that belongs to another folder."""
    folder = module.name.split(".")[2] if module.name.count(".") > 2 else ""
    for name, found in state_classes().items():
        if name not in OWNERS or OWNERS[name] == folder or folder == "state":
            continue
        handle, fields = handle_of(name), fields_of(found)
        forbidden = methods_of_owner(found)
        for node in module.nodes:
            hits = [each for each in changed(node) if each.attr in fields]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                hits += [node.func] if node.func.attr in forbidden else []
            for each in hits:
                if holder_name(each) == handle:
                    yield f"{module.where}:{each.lineno} changes {ast.unparse(each)} of {name}"


def in_node() -> list[Module]:
    return [module for module in modules() if module.part == "node"]


def test_each_state_object_has_an_owner() -> None:
    changeable = {
        name
        for name, found in state_classes().items()
        if any(
            "dataclass" in ast.unparse(each) and "frozen" not in ast.unparse(each)
            for each in found.decorator_list
        )
    }
    assert changeable == set(OWNERS)


def test_only_the_owner_changes_a_state_object() -> None:
    assert [fault for module in in_node() for fault in trespasses(module)] == []


def test_state_objects_have_few_fields() -> None:
    counts = {name: len(fields_of(found)) for name, found in state_classes().items()}
    assert {name: count for name, count in counts.items() if count > FIELDS_MAX} == {}


def test_only_the_consensus_folder_calls_ledger_handle() -> None:
    callers = {
        module.name.split(".")[2]
        for module in in_node()
        for node in module.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("core.handle")
    }
    assert callers == {"consensus"}


def test_every_kind_of_change_is_found() -> None:
    """The last two lines are allowed: any folder may call `show`, and `work.x` is no field of the
    state object."""
    text = """
context.outer.step = 1
context.outer.step += 1
outer.moving, outer.writing = True, True
context.blobs.in_flight.add(1)
del context.join_requests.pending[peer]
context.sharing.offer(1)
context.ledger.queue.next_event()
context.alerts.warnings["x"] = 1
context.identities.news = 1
context.alerts.show("x", 1)
context.trainer.work.x = 1
"""
    module = Module(modules()[0].path, "p2ptrain.node.elsewhere.module", text)
    lines = sorted({fault.split(":")[1].split(" ")[0] for fault in trespasses(module)}, key=int)
    assert lines == ["2", "3", "4", "5", "6", "7", "8", "9", "10"]
