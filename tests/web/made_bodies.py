"""The bodies of the page's API for a made history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.web.made_history import PROMPTS, STEP_S, History, Peer, Row, run_of

INVITE = (
    "p2ptrain:1ARt9wQh7mY2uJx3c8VbKfEzL5nPs6dGqT4iZ1yXoNvCeMkUaRjWtHfBgSpDlI7"
    "xQz9Yw3Vu5Ts8Rr2Pq6On4Ml1Kj7Ih0Gf3Ed9Cb5Az8Yx2Wv6Ut4Sr1Qp7On3Ml9Kj5Ih"
)


def state(history: History, now: float) -> Row:
    """Return the body of /api/v1/state."""
    newest = history.steps[-1]
    own = history.peers[0]
    heard = max(0.0, now - history.now)
    present = [each for each in history.peers if each.joins <= newest["step"] <= each.leaves]
    slow = min(present, key=lambda each: each.speed)
    step = newest["step"] + 1
    return {
        "schema": 1,
        "serial": history.serial,
        "now": now,
        "heard_s_ago": 0.4,
        "sentence": f"Training: outer step {step} of 800; waiting for {slow.name}, last heard"
        " 12 s ago; goes on without it in 8 s.",
        "can_act": True,
        "you": {
            "tokens": sum(row["tokens"] for row in history.rows if row["peer"] == own.id) * 30,
            "share": 1 / 17,
            "bytes_up_day": 4_912_000_000,
            "bytes_down_day": 5_020_000_000,
            "hours": 15.7,
        },
        "snapshots": [_snapshot(history, number) for number in range(step - step % 50, 0, -50)][:6],
        "invite": INVITE,
        "run": run_of(history),
        "status": _status(history, present, heard),
    }


def _snapshot(history: History, step: int) -> Row:
    row = history.steps[step - 1]
    return {
        "step": step,
        "digest": f"{step:04d}" + "9f3c" * 15,
        "tokens": row["tokens_total"],
        "loss": row["held_out"],
        "signers": [peer.name for peer in history.peers[:4]],
        "copies": 2 if step == 600 else 6,
    }


def _status(history: History, present: list[Peer], heard: float) -> Row:
    newest = history.steps[-1]
    own = history.peers[0]
    inner = min(100, int(heard / STEP_S * 140) + 1)
    order = ", ".join(peer.name for peer in present)
    return {
        "schema": 1,
        "peer": own.id,
        "peer_name": own.name,
        "state": f"training (inner {inner}/100)",
        "state_name": "training",
        "run": "b3" * 32,
        "run_name": "made-up-150m",
        "role": "voter",
        "outer_step": newest["step"],
        "outer_steps": 800,
        "inner_step": inner,
        "inner_steps": 100,
        "tokens": 78_643_200,
        "tokens_total": newest["tokens_total"],
        "tokens_per_s": 2480.0,
        "loss": newest["loss"],
        "validation_loss": 3.33,
        "learning_rate": newest["learning_rate"],
        "snapshot_step": newest["step"] - newest["step"] % 50,
        "averaging": f"split, in the order {order}; "
        "two slow uplinks would hold up a plain ring for 9 s more",
        "exchanged": "sent 5.4 MB and received 5.4 MB in 1.7 s",
        "waits_for": "the commit of outer step 601",
        "asking": ["quick-newt (…Qm4tYz): Ada, one RTX 4090, asked 4 min ago"],
        "cautions": [
            {
                "code": "COPIES-FEW",
                "what": "the newest snapshot has two copies online, and three are wanted",
                "do": "ask a member with free disk to keep it",
            }
        ],
        "members": [_member(peer, number, inner) for number, peer in enumerate(present)],
        "uptime_s": 56_520.0,
    }


def _member(peer: Peer, number: int, inner: int) -> Row:
    states = ("training", "training", "training", "standing by", "exchanging", "training")
    name = states[number % 6] if peer.speed > 0.6 else "training"
    words = f"training (inner {inner}/100)" if name == "training" else name
    return {
        "peer": peer.id,
        "peer_name": peer.name,
        "role": peer.role,
        "health": "red" if number == 13 else "yellow" if number == 6 else "green",
        "state": words,
        "tokens": 131_072 * max(0, 600 - peer.joins),
        "tokens_per_s": round(2480 * peer.speed, 1),
        "heard_s_ago": 0.4 * number if number != 13 else 41.0,
        "rtt_ms": 12 + 17 * (number % 9),
        "path": peer.path,
        "version": "0.9.0",
        "device": peer.device,
    }


def series(history: History) -> Row:
    """Return the body of /api/v1/series."""
    columns = {name: [row[name] for row in history.steps] for name in history.steps[0]}
    return {
        "schema": 1,
        "serial": history.serial,
        "steps": columns,
        "peers": [{"peer": each.id, "name": each.name} for each in history.peers],
        "recent": history.rows,
        "throughput": _throughput(history),
        "contributors": {
            "all": _contributors(history, 0),
            "week": _contributors(history, max(0, len(history.steps) - 6400)),
            "day": _contributors(history, max(0, len(history.steps) - 480)),
        },
        "unigram_entropy": 6.41,
    }


def _throughput(history: History) -> Row:
    steps = [row["step"] for row in history.steps]
    return {
        "step": steps,
        "by_peer": {
            peer.id: [
                round(131_072 * (0.9 + 0.1 * (step * 7 % 11) / 11) / STEP_S, 1)
                if peer.joins <= step <= peer.leaves
                else 0
                for step in steps
            ]
            for peer in history.peers
        },
    }


def _contributors(history: History, since: int) -> list[Row]:
    newest = history.steps[-1]["step"]
    found = []
    for peer in history.peers:
        steps = max(0, min(newest, peer.leaves) - max(since, peer.joins))
        found.append({"peer": peer.id, "name": peer.name, "tokens": steps * 129_000})
        found[-1]["steps"] = steps
    total = sum(each["tokens"] for each in found) or 1
    for each in found:
        each["share"] = each["tokens"] / total
    return sorted(found, key=lambda each: -int(each["tokens"]))


def events(history: History, before: int | None = None, limit: int = 100) -> Row:
    """Return the body of /api/v1/events, newest first."""
    found = [each for each in history.events if before is None or each["id"] < before]
    return {"events": found[::-1][:limit]}


def samples(history: History) -> Row:
    """Return the body of /api/v1/samples."""
    return {"prompts": list(PROMPTS), "samples": history.samples}


def everything(history: History, now: float) -> Row:
    """Return the `data.json` of a static report."""
    return {
        "state": state(history, now),
        "series": series(history),
        "events": events(history)["events"],
        "samples": samples(history),
    }


def hostile_fields(body: Any) -> Iterable[str]:
    """Yield all strings in a body."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, dict):
        for each in body.values():
            yield from hostile_fields(each)
    elif isinstance(body, list):
        for each in body:
            yield from hostile_fields(each)
