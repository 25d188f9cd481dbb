"""The acts of the demo, in order: publish, train, kill, join, refuse, stop the seed, finish.

Every act waits, with a deadline, for events in the journals of the nodes. `Facts` collects what the
events show. `verdict` decides whether these facts are as they should be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from p2ptrain.demo.show import Show
from p2ptrain.demo.verdict import JOIN_SOURCES_MIN, Facts
from p2ptrain.errors import counted
from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.testing.node_process import DemoNode, Event, losses_of, run_command

LOOK_EVERY_S = 0.02
STATUS_EVERY_S = 1.0

KILL_AT_STEP = 2
STEPS_BEFORE_SEED_STOPS = 2
"""Number of outer steps with the newcomer before the seed is stopped."""


class DemoFailed(Exception):
    """The demo cannot continue; the message says what did not happen."""


class Story:
    """The nodes of the demo, and the events seen so far."""

    uplink = "4Mbit"
    """Upload limit of a volunteer, typical of a home connection. With this limit, one exchange of
    the demo's model takes over a second."""

    seed_uplink = "20Mbit"
    """Upload limit of the seed, typical of a fast connection. With 100 Mbit, the seed alone sent a
    newcomer everything before the other nodes were connected to the newcomer."""

    def __init__(self, folder: Path, config: Path, show: Show) -> None:
        self.folder = folder
        self.config = config
        self.show = show
        self.facts = Facts()
        self.cast = {name: self._cast(name) for name in ("seed", "ann", "ben", "cat", "dan", "eve")}
        self.peers: dict[str, str] = {}
        self._status_due_s = 0.0
        self._told: set[str] = set()
        """Texts already printed."""

    def _cast(self, name: str) -> DemoNode:
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        return DemoNode(name, home)

    @property
    def volunteers(self) -> list[DemoNode]:
        """The training nodes that still run."""
        return [self.cast[name] for name in ("ann", "ben", "cat", "dan") if self.cast[name].running]

    # -- observing ----------------------------------------------------------------------------

    def read_events(self) -> None:
        """Read all journals once, print the interesting events, and refresh the table."""
        for node in self.cast.values():
            for event in node.new_events():
                text = in_words(event)
                if text is None or (event["event"] == "evaluated" and text in self._told):
                    continue  # All nodes report the same loss; print it once.
                self._told.add(text)
                self.show.print_line(f"{node.name:<5} {text}")
        if time.monotonic() >= self._status_due_s:
            self._status_due_s = time.monotonic() + STATUS_EVERY_S
            self.show.nodes(self.statuses())

    def statuses(self) -> list[dict[str, Any]]:
        found = [(node, node.status()) for node in self.cast.values() if node.running]
        return [status | {"name": node.name} for node, status in found if status is not None]

    def wait_for(self, what: str, seen: Callable[[], Any], *, deadline_s: float) -> Any:
        """Call `seen` until it returns a true value, and return that value.

        Raises DemoFailed: `deadline_s` has passed, or a node that should run has ended.
        """
        ends_s = time.monotonic() + deadline_s
        while True:
            self.read_events()
            if value := seen():
                return value
            if time.monotonic() > ends_s:
                raise DemoFailed(f"this did not happen within {deadline_s:.0f} s: {what}")
            self._check_alive()
            time.sleep(LOOK_EVERY_S)

    def _check_alive(self) -> None:
        for node in self.cast.values():
            if node.returncode not in (None, 0, 6, -9):
                said = node.output()[-2000:]
                raise DemoFailed(f"{node.name} ended with status {node.returncode}:\n{said}")

    # -- acts ---------------------------------------------------------------------------------

    def play(self) -> None:
        """Play all acts. Raises DemoFailed: an act cannot continue."""
        address = self.publish()
        self.train(address)
        self.kill_one()
        self.one_joins(address)
        self.one_is_refused(address)
        self.seed_stops()
        self.finish()

    def publish(self, allowed: Sequence[str] = ("ann", "ben", "cat", "dan")) -> str:
        """Sign a run that allows these nodes, start a seed, and return the seed's address."""
        for name, node in self.cast.items():
            told = json.loads(run_command("id", "--home", str(node.home), "--json"))
            self.peers[name] = told["peer"]
        seed = self.cast["seed"]
        listed = [part for name in allowed for part in ("--allow", self.peers[name])]
        self.show.print_line("the organiser packs the standard library's sources and signs a run …")
        published = run_command(
            *("run", "publish", str(self.config), "--home", str(seed.home)),
            *("--founder", self.peers["seed"], *listed, "--json"),
        )
        self.show.print_line(f"run {json.loads(published)['run'][:12]} is published")
        self._start(seed, "--seed", uplink=self.seed_uplink)
        status = self.wait_for(
            "the seed's address", lambda: _with_address(seed.status()), deadline_s=30
        )
        return str(status["addresses"][0])

    def _start(self, node: DemoNode, *arguments: str, uplink: str = "") -> None:
        limit = ("--limit-up", uplink or self.uplink)
        node.start(*self._where(node), *limit, "--threads", "1", *arguments)

    def _where(self, node: DemoNode) -> tuple[str, ...]:
        """Return the options that set the addresses on which `node` listens."""
        return "--listen", "/ip4/127.0.0.1/tcp/0", "--data-listen", "127.0.0.1:0"

    def train(self, address: str) -> None:
        """Start three volunteers that know only an address, and wait until the run begins."""
        for name in ("ann", "ben", "cat"):
            self._start(self.cast[name], "--bootstrap", address)
        self.wait_for(
            "a first committed outer step", lambda: self._committed_by("ann", 0), deadline_s=90
        )
        plan = self.cast["ann"].status()
        if plan is not None:
            self.facts.outer_steps_planned = plan["outer_steps"]

    def _committed_by(self, name: str, step: int) -> Event | None:
        return self.cast[name].find("committed", step=step)

    def kill_one(self) -> None:
        """Kill cat with SIGKILL in the middle of a reduce. The others must commit that step without
        cat."""
        victim, survivors = self.cast["cat"], [self.cast["ann"], self.cast["ben"]]
        started = self.wait_for(
            "cat in an exchange with others", lambda: _open_reduce(victim), deadline_s=60
        )
        step = int(started["step"])
        victim.kill()
        killed_at_s = time.time()
        self.show.print_line(
            f"killing cat (SIGKILL) in the exchange of outer step {step}", style="bold red"
        )
        self.read_events()
        self.facts.killed_at_step = step
        self.facts.killed_in_reduce = _open_reduce(victim) == started
        commits = self.wait_for(
            f"the commit of outer step {step}",
            lambda: _all([node.find("committed", step=step) for node in survivors]),
            deadline_s=60,
        )
        self.facts.kill_to_commit_s = max(commit["time"] for commit in commits) - killed_at_s
        self._judge_kill(step, self.cast["ann"])
        self.show.print_line(
            f"outer step {step} is committed {self.facts.kill_to_commit_s:.1f} s after the kill"
        )

    def _judge_kill(self, step: int, witness: DemoNode) -> None:
        rosters = [
            event["participants"]
            for event in witness.events
            if event["event"] == "decided"
            and event.get("step") == step
            and event.get("participants")
        ]
        before, last = (
            {peer: tokens for peer, tokens, _ in roster} for roster in (rosters[0], rosters[-1])
        )
        victim = self.peers["cat"]
        self.facts.killed_step_committed_without_victim = victim in before and victim not in last
        survivors = {peer: tokens for peer, tokens in before.items() if peer != victim}
        self.facts.survivors_tokens_kept = bool(survivors) and survivors == last

    def one_joins(self, address: str) -> None:
        """Let dan join: it fetches a snapshot from several peers and the later updates, and then
        appears in a roster."""
        dan = self.cast["dan"]
        # Nodes write snapshots in the background. On a busy machine, some nodes finish much later
        # than others.
        self.wait_for(
            "a snapshot that several nodes hold", self._newest_is_of_several, deadline_s=90
        )
        self._start(dan, "--bootstrap", address)
        fetched = self.wait_for(
            "dan's snapshot", lambda: dan.find("snapshot-fetched"), deadline_s=90
        )
        caught_up = self.wait_for(
            "dan at the ledger's head", lambda: dan.find("caught-up"), deadline_s=60
        )
        self.facts.join_fetch_s = fetched["seconds"]
        self.facts.join_sources = sum(1 for size in fetched["bytes_by_peer"].values() if size > 0)
        self.facts.join_updates_replayed = caught_up["updates"]
        roster = self.wait_for("dan in a roster", lambda: self._first_roster("dan"), deadline_s=90)
        self.facts.join_first_roster_step = roster["step"]

    def _newest_is_of_several(self) -> bool:
        """Return whether enough nodes have written the newest snapshot for a joiner to fetch it
        from several of them.
        """
        written = [_snapshots(node) for node in self.cast.values() if node.running]
        newest = max((step for steps in written for step in steps), default=None)
        return sum(newest in steps for steps in written) >= JOIN_SOURCES_MIN

    def _first_roster(self, name: str) -> Event | None:
        """Return the first roster in which this node takes part in an average, according to its
        journal.
        """
        for event in self.cast[name].events:
            if event["event"] == "decided" and any(
                peer == self.peers[name] for peer, _, _ in event.get("participants") or ()
            ):
                return event
        return None

    def one_is_refused(self, address: str) -> None:
        """Start eve, which is not on the allowlist, and wait until it is refused."""
        eve = self.cast["eve"]
        self._start(eve, "--bootstrap", address, "--no-wait")
        self.wait_for("eve's refusal", lambda: eve.returncode is not None, deadline_s=60)
        said = eve.output()
        self.facts.refused_exit = eve.returncode
        self.facts.refused_code = said.partition("error[")[2].partition("]")[0] or None
        self.facts.refused_says_what_to_do = self.peers["eve"] in said and "peers approve" in said
        self.show.print_line(f"eve is refused: {self.facts.refused_code}", style="yellow")

    def seed_stops(self) -> None:
        """Stop the seed, the node to which all other nodes connected first."""
        first = self.facts.join_first_roster_step or 0
        self.wait_for(
            "some steps with dan",
            lambda: self._committed_by("dan", first + STEPS_BEFORE_SEED_STOPS - 1),
            deadline_s=90,
        )
        seed = self.cast["seed"]
        seed.stop()
        self.wait_for("the seed's end", lambda: not seed.running, deadline_s=30)
        self.facts.seed_stopped_at_step = max(_steps_committed(node) for node in self.volunteers)
        self.show.print_line("the seed is stopped; the run continues", style="bold yellow")

    def finish(self) -> None:
        """Wait for the last outer step, and collect the final states of the remaining nodes."""
        self.wait_for(
            "the run's end on every node",
            lambda: all(node.find("run-ended") for node in self.volunteers),
            deadline_s=240,
        )
        planned = self.facts.outer_steps_planned
        self.wait_for("the last validation", lambda: planned in self._losses(), deadline_s=90)
        self.read_events()
        facts = self.facts
        names = ("name", "peer", "peer_name", "ledger_height", "ledger_head", "state_digest")
        facts.nodes = [
            {name: status.get(name) for name in (*names, "outer_step", "tokens")}
            for status in self.statuses()
        ]
        ups = {node.name: node.find("trainer-up") for node in self.cast.values()}
        facts.devices = {name: str(up["device"]) for name, up in ups.items() if up is not None}
        facts.outer_steps = min((node["outer_step"] for node in facts.nodes), default=0)
        if facts.seed_stopped_at_step is not None:
            facts.steps_after_seed_stopped = facts.outer_steps - facts.seed_stopped_at_step
        self._audit()
        losses = list(self._losses().values())
        facts.val_loss_first, facts.val_loss_last = losses[0], losses[-1]

    def _audit(self) -> None:
        """Compare the ledger with the journals of all nodes, including the killed one."""
        home = self.volunteers[0].home
        journals = [str(node.home / "journal.jsonl") for node in self.cast.values()]
        said = json.loads(
            run_command("ledger", "trained", *journals, "--home", str(home), "--json")
        )
        self.facts.blocks_trained_once = said["checked"]
        self.facts.blocks_trained_otherwise = said["unseen"]

    def _losses(self) -> dict[int, float]:
        return losses_of(event for node in self.cast.values() for event in node.events)


def _snapshots(node: DemoNode) -> set[int]:
    """Return the outer steps of the snapshots that this node has written."""
    return {event["step"] for event in node.events if event["event"] == "snapshot"}


def _with_address(status: dict[str, Any] | None) -> dict[str, Any] | None:
    return status if status is not None and status.get("addresses") else None


def _all(events: list[Event | None]) -> list[Event] | None:
    found = [event for event in events if event is not None]
    return found if len(found) == len(events) else None


def _open_reduce(node: DemoNode) -> Event | None:
    """Return the node's current reduce, if it has three peers or more (this one included) and its
    outer step is KILL_AT_STEP or later."""
    for event in reversed(node.events):
        if event["event"] in ("exchange-done", "exchange-failed"):
            return None
        if event["event"] == "exchange-connected":
            return event if event["step"] >= KILL_AT_STEP and len(event["peers"]) >= 3 else None
    return None


def _steps_committed(node: DemoNode) -> int:
    return 1 + max((e["step"] for e in node.events if e["event"] == "committed"), default=-1)


def in_words(event: Event) -> str | None:
    """Describe a journal record in one line; return None for a record that is not worth showing."""
    match event:
        case {"event": "snapshot-fetched"}:
            size = sum(event["bytes_by_peer"].values()) / 1e6
            return (
                f"fetched the snapshot of outer step {event['step']}: {size:.1f} MB from "
                f"{counted(len(event['bytes_by_peer']), 'peer')} in {event['seconds']:.1f} s"
            )
        case {"event": "caught-up", "updates": int(updates), "step": int(step)}:
            return f"is at outer step {step} after replaying {counted(updates, 'update')}"
        case {"event": "committed", "step": int(step)}:
            tokens, peers = event["tokens"], event["peers"]
            return f"committed outer step {step}: {tokens:,} tokens from {counted(peers, 'peer')}"
        case {"event": "exchange-failed"}:
            return f"the exchange of outer step {event['step']} failed: {event['reason']}"
        case {"event": "evaluated", "step": int(step)}:
            return f"loss before outer step {step}: {event['what']}"
        case {"event": "inner-state-taken"}:
            donor = f"{peer_name(PeerId(event['peer']))} at outer step {event['step']}"
            if (among := event["among"]) > 1:
                return f"starts with the mean of {among} inner optimizers, one of them from {donor}"
            return f"starts with the inner optimizer of {donor}"
        case {"event": "inner-state-fresh"}:
            return f"starts with an empty inner optimizer: {event['reason']}"
        case {"event": "left"}:
            return "left the run"
        case {"event": "run-ended"}:
            return "sees that the run has ended"
    return None
