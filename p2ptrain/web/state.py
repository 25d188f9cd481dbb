"""The state that the page shows at its top: the node's status, and what follows from it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from p2ptrain.observe.states import duration
from p2ptrain.web import capped
from p2ptrain.web.charts import DAY_S
from p2ptrain.web.facts import Facts
from p2ptrain.web.history import History, Row

SCHEMA = 1
FRESH_S = 10.0
"""Seconds after which an answer of the node is too old to act on."""


def bounded(status: Mapping[str, object]) -> Row:
    """Return the node's status with bounded values. It has no IP addresses: the page does not show
    them, and people publish pictures of it. Ages are whole seconds, which saves bytes."""
    found = capped.plain(dict(status))
    assert isinstance(found, dict)
    found["addresses"] = []
    members = found.get("members")
    for member in members if isinstance(members, list) else []:
        if isinstance(member, dict) and isinstance(heard := member.get("heard_s_ago"), float):
            member["heard_s_ago"] = round(heard)
    if isinstance(uptime := found.get("uptime_s"), float):
        found["uptime_s"] = round(uptime)
    return found


def state(
    status: Row | None,
    heard_s_ago: float | None,
    history: History,
    facts: Facts,
    wall: float | None = None,
) -> Row:
    """Return the body of `/api/v1/state`, without its serial. `heard_s_ago` is the age of `status`;
    both are None if the node has never answered. `wall` is in Unix seconds."""
    now = time.time() if wall is None else wall
    fresh = heard_s_ago is not None and heard_s_ago < FRESH_S
    serves = status is not None and status.get("state_name") == "serving"
    return {
        "schema": SCHEMA,
        "now": round(now, 1),
        "heard_s_ago": None if heard_s_ago is None else round(heard_s_ago, 1),
        "status": status,
        "sentence": sentence(status, heard_s_ago),
        "can_act": fresh and not serves,
        "you": None if status is None or serves else _you(status, history, now),
        "snapshots": facts.snapshots(status),
        "invite": facts.invite,
        "run": facts.run(),
    }


def sentence(status: Row | None, heard_s_ago: float | None) -> str:
    """Say in one sentence what the node does, and what it waits for."""
    if status is None or heard_s_ago is None:
        return "The node has not answered yet."
    if heard_s_ago >= FRESH_S:
        return f"The node has not answered for {duration(heard_s_ago)}."
    steps, waits_for = status.get("outer_steps"), str(status.get("waits_for") or "")
    name = str(status.get("state") or "unknown")
    if waits_for and status.get("state_name") == "standing by":
        name = "standing by"  # The state in words says the same as `waits_for`.
    where = f"step {status.get('outer_step')} of {steps}" if steps else ""
    told = [each for each in (where, waits_for) if each]
    return name[:1].upper() + name[1:] + (": " + "; ".join(told) if told else "")


def _you(status: Row, history: History, now: float) -> Row:
    tokens, total = _count(status.get("tokens")), _count(status.get("tokens_total"))
    bytes_up, bytes_down = history.own_traffic(now - DAY_S)
    busy_ms = history.busy_ms(str(status.get("peer")), now - DAY_S)
    return {
        "tokens": tokens,
        "share": capped.number(tokens / total) if total else 0.0,
        "bytes_up_day": bytes_up,
        "bytes_down_day": bytes_down,
        "hours": None if busy_ms is None else round(busy_ms / 3.6e6, 2),
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def content_key(found: Row) -> str:
    """Return a text that stays the same as long as only times and ages in the state change. The
    round-trip times vary a little all the time, so they do not make a state new either."""
    kept = {name: each for name, each in found.items() if name not in ("now", "heard_s_ago")}
    status = kept["status"]
    if isinstance(status, dict):
        members = status.get("members")
        kept["status"] = {
            **status,
            "uptime_s": 0,
            "members": [
                {**each, "heard_s_ago": 0, "rtt_ms": 0} if isinstance(each, dict) else each
                for each in (members if isinstance(members, list) else [])
            ],
        }
    return to_json(kept)


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
