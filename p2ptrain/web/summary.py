"""The state as text: for Prometheus (`/metrics`), and for people without a browser (`/run.txt`)."""

from __future__ import annotations

from collections.abc import Iterator

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.observe.status import NodeStatus, status_lines
from p2ptrain.web import capped
from p2ptrain.web.history import Row

GAUGES = {
    "outer_step": "The outer step in progress.",
    "outer_steps": "The outer steps of the run.",
    "inner_step": "The inner step in progress.",
    "tokens": "Certified tokens that this node trained on.",
    "tokens_total": "Certified tokens of all peers.",
    "tokens_per_s": "Tokens per second of this node's trainer.",
    "loss": "Loss of the last inner step, in nats per token.",
    "validation_loss": "Loss of the outer state on held-out data, in nats per token.",
    "learning_rate": "Learning rate of the last inner step.",
    "gradient_norm": "Gradient norm of the last inner step, before clipping.",
    "mfu": "Model FLOPs utilisation of the last inner step.",
    "compute_utilisation": "Fraction of the last outer step spent in inner steps.",
    "data_wait_s": "Seconds that the last inner step waited for data.",
    "snapshot_step": "The outer step of the newest certified snapshot.",
    "uptime_s": "Seconds since the node was started.",
}
"""Numbers of the status that are metrics, with their descriptions."""


def metrics(state: Row) -> str:
    """Return the state in the text format of Prometheus."""
    status = state["status"]
    told = status if isinstance(status, dict) else {}
    labels = f'{{run="{_escaped(told.get("run_name"))}",peer="{_escaped(told.get("peer"))}"}}'
    heard = state["heard_s_ago"]
    values: list[tuple[str, str, object]] = [
        ("answers", "Whether the node has answered.", int(heard is not None)),
        ("heard_s_ago", "Seconds since the node last answered.", heard),
        *((name, words, told.get(name)) for name, words in GAUGES.items()),
        *_member_counts(told.get("members")),
    ]
    lines = []
    for name, words, value in values:
        if isinstance(value, int | float):
            full = f"p2ptrain_{name}"
            lines += [f"# HELP {full} {words}", f"# TYPE {full} gauge", f"{full}{labels} {value}"]
    return "\n".join(lines) + "\n"


def _member_counts(members: object) -> Iterator[tuple[str, str, object]]:
    if isinstance(members, list):
        healths = [each.get("health") for each in members if isinstance(each, dict)]
        yield "members", "Members of the run.", len(healths)
        yield "members_heard", "Members that this node hears well.", healths.count("green")


def _escaped(value: object) -> str:
    return capped.text(str(value or ""), 80).replace("\\", "\\\\").replace('"', '\\"')


def run_text(state: Row) -> str:
    """Return the state as plain text."""
    lines = [str(state["sentence"])]
    status = state["status"]
    if isinstance(status, dict):
        try:
            lines += status_lines(NodeStatus.from_json(status))
        except (RemoteProtocolError, TypeError, ValueError):
            lines.append(
                "The node's status cannot be read: the node runs another version of p2ptrain."
            )
    snapshots = state["snapshots"]
    for snapshot in snapshots[:3] if isinstance(snapshots, list) else []:
        lines.append(f"snapshot  outer step {snapshot['step']}, {snapshot['digest']}")
    if state["invite"]:
        lines.append(f"join      p2ptrain join {state['invite']}")
    return "\n".join(capped.text(line, 20_000) for line in lines) + "\n"
