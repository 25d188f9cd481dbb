"""Send one trainer the orders of `next_orders`, and turn its answers into this node's reports."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from p2ptrain.archive.contribution_weights import eagerness
from p2ptrain.archive.outer_step import OuterStep, inner_rates
from p2ptrain.errors import StoreError, TrainerError, TrainerExited, first_error
from p2ptrain.ids import Digest
from p2ptrain.ipc import frames
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.state.context import Parts
from p2ptrain.node.training import evaluation_task, lease_data, micro_batch_memory, ready_work
from p2ptrain.node.training.trainer_processes import RunningTrainer
from p2ptrain.observe.states import Loading, StandingBy, Training
from p2ptrain.run import Leg
from p2ptrain.sync.trainer_orders import (
    AheadOrder,
    Desk,
    LoadOrder,
    MergeOrder,
    Order,
    RebaseOrder,
    TrainOrder,
    after,
    next_orders,
)

READ_BYTES = 1 << 16
CHECK_EVERY_S = 1.0
LAST_WORDS_LOOK_S = 0.05
RESTARTED = "trainer"
"""Key of the warning about a restart. It is removed when the new trainer's work is offered."""


class Conversation:
    """One trainer from its Hello to its end."""

    def __init__(self, parts: Parts, running: RunningTrainer) -> None:
        self._parts = parts
        self._running = running
        self._up = False
        self._desk: Desk | None = None
        self._paths: tuple[str, ...] = ()
        """The files of the desk's blocks."""
        self._rates = inner_rates(Leg(parts.manifest))
        """The rates that it trains with; initially those of its settings."""
        self._first_inner_step = 0
        """The number of inner steps before the outer step of its θ."""
        self._to_train = 0
        """The number of blocks that it was given and has not trained yet."""
        self._answered_step: int | None = None
        """The outer step of the newest report. Orders for it and earlier steps have been carried
        out."""
        self._asked_step: int | None = None
        """The last outer step for which it was told to measure θ."""
        self._evaluating = False
        self._held_out: tuple[Digest, ...] = ()
        """The held-out blocks of that measurement."""
        self._hears = False
        """True while frames of the trainer are being processed."""
        self._began_at = parts.outer.replaced

    @property
    def _rests_on_wrong_theta(self) -> bool:
        return self._began_at != self._parts.outer.replaced

    async def hold(self) -> None:
        """Serve the trainer until it ends.

        Raises:
            TrainerError: it ended, stalled or cannot continue.
        """
        if self._parts.ledger.state.phase is not Phase.ENDED:
            self._parts.enter(Loading())
        await ready_work.offer_again(self._parts)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                nursery.start_soon(self._heard_out, self._watch)
                nursery.start_soon(self._heard_out, self._give_orders)
        except BaseExceptionGroup as group:
            ended, others = group.split(TrainerError)
            if others is not None:
                raise others from None  # The node ends too: it is not the trainer's error.
            assert ended is not None, "an exception group is never empty"
            raise first_error(ended) from None

    async def _listen(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._running.socket.fileno())
            self._hears = True
            try:
                received = self._running.socket.recv(READ_BYTES)
            except OSError:
                received = b""  # A killed trainer can reset the socket instead of closing it.
            for frame in await trio.to_thread.run_sync(self._running.feed, received):
                await self._hear(frame)
            self._hears = False
            self._parts.changes.ring()

    async def _watch(self) -> None:
        told = ""
        while True:
            await trio.to_thread.run_sync(self._running.check)
            if (wanted := self._running.waits_for) != told:
                self._parts.enter(StandingBy(wanted) if wanted else Loading())
                self._parts.changes.ring()
                told = wanted
            if self._rests_on_wrong_theta:
                raise TrainerError("its work is based on a wrong θ", code="STATE-DIFFERS")
            await trio.sleep(CHECK_EVERY_S)

    async def _heard_out(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run `task`. If it finds that the trainer has ended, wait until all frames are processed:
        the last frame says why the trainer ended, and `_listen` raises the error.
        """
        try:
            await task()
        except TrainerExited:
            while self._hears or self._has_more_to_say():
                await trio.sleep(LAST_WORDS_LOOK_S)
            raise

    def _has_more_to_say(self) -> bool:
        """Return whether there are unread bytes of the trainer, or its end of file."""
        try:
            self._running.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass  # A reset also ends the stream.
        return True

    # -- orders to the trainer --------------------------------------------------------------------

    async def _give_orders(self) -> None:
        while True:
            orders = await self._orders_with_data()
            for order in orders:
                await self._give(order)
            measures = await self._measure_our_share()
            if not orders and not measures:
                await self._parts.changes.wait()

    async def _orders_with_data(self) -> list[Order]:
        """Return the due orders once their data is here. Sending them must then be fast: θ must not
        change from the first order until the trainer has read θ.
        """
        orders, held = self._orders_due(), list[Digest]()
        while (blocks := self._blocks_of(orders)) != held:
            await lease_data.paths_of(self._parts, blocks)
            orders, held = self._orders_due(), blocks  # The lease may have grown in the meantime.
        return orders

    def _taken(self) -> bool:
        """Return whether the work that the trainer has offered was averaged into θ."""
        parts, desk = self._parts, self._desk
        if desk is None or not desk.offered or desk.step >= parts.ledger.state.step:
            return False
        if desk.step < parts.ledger.kept.start.step:
            return False  # That step was pruned. Return False, since a Load is always correct.
        return any(each.peer == parts.me for each in parts.history.participants(desk.step))

    def _may_read_theta(self) -> bool:
        """Return whether θ is at the ledger's head and nothing is about to change it."""
        parts = self._parts
        return (
            self._up
            and not self._rests_on_wrong_theta
            and parts.outer.step == parts.ledger.state.step
            and not parts.outer.lock.locked()
        )

    def _orders_due(self) -> list[Order]:
        parts, state = self._parts, self._parts.ledger.state
        if not self._up or state.phase is Phase.ENDED:
            return []
        if (outer_step := parts.known_outer_step(state.step)) is None:
            return []
        lease = state.leases.get(parts.me, ())
        if not lease:
            self._desk = None  # If the same lease returns in this step, start over.
        if not lease and self._may_read_theta():
            parts.standing.work = None
            parts.enter(StandingBy("for a place in the next roster"))
        if self._desk is None and ready_work.stands(parts):
            return []  # The previous trainer did the work; `local` must not change.
        taken = self._taken()
        orders = next_orders(self._desk, state.step, lease, outer_step.pace, taken=taken)
        return orders if orders and self._may_give(orders[0]) else []

    def _may_give(self, order: Order) -> bool:
        """Return whether `order` may be given now. Training ahead does not read θ. A merge waits
        until all blocks are trained."""
        if isinstance(order, AheadOrder):
            return not self._rests_on_wrong_theta
        waits = isinstance(order, MergeOrder) and self._to_train > 0
        return self._may_read_theta() and not waits

    def _blocks_of(self, orders: list[Order]) -> list[Digest]:
        trains = [each for each in orders if isinstance(each, TrainOrder | AheadOrder)]
        blocks = [block for each in trains for block in each.blocks]
        return [self._parts.data_block(block) for block in blocks]

    async def _give(self, order: Order) -> None:
        parts, standing = self._parts, self._parts.standing
        outer_step = parts.outer_step(order.step)
        match order:
            case LoadOrder(step):
                frame: frames.ToTrainer = frames.Load(step)
                self._first_inner_step = outer_step.first_inner_step
                self._to_train, self._paths = 0, ()
            case MergeOrder(step):
                frame = frames.Merge(step)
                assert self._desk is not None
                self._first_inner_step = outer_step.first_inner_step
                self._paths = self._paths[self._desk.offered :]
            case RebaseOrder(step):
                frame = frames.Rebase(step)
            case TrainOrder(step, blocks) | AheadOrder(step, blocks):
                ahead = isinstance(order, AheadOrder)
                await self._set_rates(outer_step, ahead=ahead)
                paths = tuple(map(str, await lease_data.paths_of(parts, self._blocks_of([order]))))
                self._paths += paths
                before = len(self._desk.blocks) if self._desk else 0
                others = parts.history.newest_participants(step)
                pull = eagerness(outer_step.manifest, others, parts.me)
                begun = self._first_inner_step + before
                frame = frames.Train(step, paths, begun, ahead, *pull)
                self._to_train += len(blocks)
                if blocks and not ahead:
                    standing.inner_step, standing.inner_steps = before, before + len(blocks)
                    parts.enter(Training(standing.inner_step, standing.inner_steps))
        self._desk = after(self._desk, order)
        if not isinstance(order, AheadOrder):
            standing.work = None
        self._note_use_of_theta()
        await self._send(frame)

    async def _send(self, frame: frames.ToTrainer) -> None:
        """Send as soon as the socket has room; `_watch` fails if that takes too long."""
        send, meanwhile = self._running.send, trio.from_thread.check_cancelled
        await trio.to_thread.run_sync(send, frame, meanwhile)

    async def _set_rates(self, outer_step: OuterStep, *, ahead: bool) -> None:
        """If a known amendment has changed the rates, send the new ones: those for `outer_step`, or
        for the next outer step if `ahead`."""
        rates = outer_step.inner_rates
        if ahead:
            rates = inner_rates(self._parts.about(outer_step.step + 1))
        if rates != self._rates:
            self._rates = rates
            await self._send(rates)

    async def _measure_our_share(self) -> bool:
        """Tell the trainer to measure θ on our share of the held-out blocks, once per outer step.
        Return whether a share was due."""
        parts, step = self._parts, self._parts.ledger.state.step
        if not self._may_read_theta() or self._asked_step == step:
            return False
        if not (share := evaluation_task.own_share(parts)):
            return False
        paths = await evaluation_task.own_files(parts, lambda: not self._orders_due())
        if not paths or not self._may_read_theta() or parts.ledger.state.step != step:
            return True
        self._asked_step, self._evaluating, self._held_out = step, True, share
        self._note_use_of_theta()
        await self._send(frames.Evaluate(step, paths))
        return True

    def _note_use_of_theta(self) -> None:
        """Update `theta_in_use`, which is True from an order until a report for its step.
        `outer_task` waits until it is False."""
        owes_report = self._desk is not None and self._answered_step != self._desk.step
        self._parts.standing.theta_in_use = owes_report or self._evaluating

    # -- reports of the trainer -------------------------------------------------------------------

    async def _hear(self, frame: frames.Frame) -> None:
        parts = self._parts
        match frame:
            case frames.Hello():
                self._greet(frame)
            case frames.Resumed(step, state_step, trouble):
                parts.journal.write(
                    "inner-state", step=step, resumed_from=state_step, trouble=trouble
                )
            case frames.Progress():
                self._answered_step = frame.step
                self._note_progress(frame)
            case frames.FragmentReady():
                await self._note_ready(frame)
                self._answered_step = frame.step
            case frames.Evaluated(step, loss, tokens):
                self._evaluating = False
                evaluation_task.measured(parts, step, loss, tokens)
            case frames.Failed(code, text, request) if request is not None:
                self._evaluating = False
                parts.journal.write("evaluation-failed", code=code, reason=text)
                self._forget_damaged(self._held_out)
            case frames.Failed(code, text):
                blocks = self._desk.blocks if self._desk else ()
                self._forget_damaged([parts.data_block(block) for block in blocks])
                raise TrainerError(f"the trainer cannot continue: {text}", code=code)
            case _:
                raise TrainerError(f"the trainer sent an unexpected {frame.kind} frame")
        self._note_use_of_theta()

    def _greet(self, hello: frames.Hello) -> None:
        parts = self._parts
        if hello.layout_digest != parts.layout.digest:
            raise TrainerError("the trainer's layout differs from the run's", code="RUN-VERSION")
        self._up = parts.standing.trainer_up = True
        parts.standing.trainer = micro_batch_memory.in_words(parts, hello)
        parts.journal.write(
            "trainer-up",
            ranks=hello.ranks,
            device=hello.device,
            parameters=hello.parameters,
            micro_batch=hello.micro_batch,
        )
        parts.speak_now()

    async def _note_ready(self, ready: frames.FragmentReady) -> None:
        """Offer the work if it covers all of our currently agreed lease.

        If it covers less, the trainer has been told to train more, or soon will be, and will change
        its weights again. They must not be averaged until then.
        """
        parts, lease = self._parts, self._whole_lease_of(ready)
        if not lease:
            return
        if ready.block_paths != self._paths:
            raise TrainerError("the trainer did not train on its assigned blocks")
        assert self._desk is not None
        await ready_work.hold_to_the_bound(parts, parts.outer_step(self._desk.step))
        if self._whole_lease_of(ready) != lease:
            return
        self._desk = replace(self._desk, offered=ready.blocks)
        self._running.useful = True
        parts.standing.warnings.pop(RESTARTED, None)
        await ready_work.offer(parts, ready, lease)

    def _whole_lease_of(self, ready: frames.FragmentReady) -> tuple[int, ...]:
        """Return the due part of our currently agreed lease if `ready` covers exactly that part,
        otherwise (). Work based on a θ that has been found wrong does not count: `_watch` ends this
        trainer, but offered work would remain valid."""
        state, desk = self._parts.ledger.state, self._desk
        if self._rests_on_wrong_theta or desk is None:
            return ()
        if not ready.step == desk.step == state.step:
            return ()
        lease = state.leases.get(self._parts.me, ())
        due = desk.due(lease, self._parts.outer_step(state.step).pace)
        return due if desk.blocks == due and ready.blocks == len(due) else ()

    def _note_progress(self, progress: frames.Progress) -> None:
        parts, standing = self._parts, self._parts.standing
        block_tokens = parts.manifest.data.block_tokens
        parts.journal.write(
            "inner-step",
            step=progress.step,
            inner_step=progress.inner_step,
            loss=progress.loss,
            tokens_per_s=progress.tokens_per_s,
            seconds=progress.duration_s(block_tokens),
            data_wait_s=progress.data_wait_s,
            mfu=progress.mfu,
            learning_rate=progress.learning_rate,
            gradient_norm=progress.gradient_norm,
        )
        standing.inner_s += progress.computed_s(block_tokens)
        standing.progress = progress
        self._to_train = max(0, self._to_train - 1)
        standing.tokens_per_s = progress.tokens_per_s
        if self._desk is None or not self._desk.offered:
            standing.inner_step += 1
            parts.enter(Training(standing.inner_step, standing.inner_steps))

    def _forget_damaged(self, blocks: Sequence[Digest]) -> None:
        """Read these blocks once. The store then counts a damaged block as missing, so the next
        trainer or measurement gets a new copy."""
        for block in blocks:
            with suppress(StoreError):
                self._parts.store.get_chunk(block)
