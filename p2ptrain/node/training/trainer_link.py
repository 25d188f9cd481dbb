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
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import evaluation_task, lease_data, micro_batch_memory, ready_work
from p2ptrain.node.training.sampling import Sampler
from p2ptrain.node.training.trainer_processes import RunningTrainer
from p2ptrain.observe.states import Loading, StandingBy
from p2ptrain.run import Leg
from p2ptrain.sync.trainer_orders import (
    AheadOrder,
    LoadOrder,
    MergeOrder,
    Order,
    RebaseOrder,
    TrainerProgress,
    TrainOrder,
    next_orders,
    progress_after,
)

READ_BYTES = 1 << 16
LAST_WORDS_LOOK_S = 0.05
RESTARTED = "trainer"
"""Key of the warning about a restart. It is removed when the new trainer's work is offered."""


class TrainerSession:
    """The exchange of frames with one trainer, from its start to its end."""

    def __init__(self, context: Context, running: RunningTrainer) -> None:
        self._context = context
        self._running = running
        self._up = False
        """Whether the trainer has sent Hello."""
        self._progress: TrainerProgress | None = None
        self._paths: tuple[str, ...] = ()
        """The files of the blocks in `_progress`."""
        self._rates = inner_rates(Leg(context.manifest))
        """The learning rates that the trainer uses; initially those of its settings."""
        self._first_inner_step = 0
        """The number of inner steps that the run makes before the outer step of the trainer's θ."""
        self._to_train = 0
        """The number of blocks that the trainer was given and has not trained yet."""
        self._answered_step: int | None = None
        """The outer step of the newest report. The trainer has carried out all orders for this and
        earlier outer steps."""
        self._asked_step: int | None = None
        """The newest outer step for which the trainer was told to measure θ."""
        self._evaluating = False
        """Whether the trainer is measuring θ."""
        self._held_out: tuple[Digest, ...] = ()
        """The held-out blocks of the newest measurement."""
        self._sampler = Sampler(context, self._may_read_theta, self._send, self._note_use_of_theta)
        self._hears = False
        """True while frames of the trainer are being processed."""
        self._began_at = context.outer.replaced
        """How many times a wrong θ had been replaced when this trainer started."""

    @property
    def _rests_on_wrong_theta(self) -> bool:
        return self._began_at != self._context.outer.replaced

    async def serve(self) -> None:
        """Give orders to the trainer and process its reports until it ends.
        Raises TrainerError: the trainer ended, stalled or cannot continue."""
        if self._context.ledger.snapshot.phase is not Phase.ENDED:
            self._context.state.set_state(Loading())
        await ready_work.offer_work_again(self._context)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                nursery.start_soon(self._run_then_drain, self._watch)
                nursery.start_soon(self._run_then_drain, self._give_orders)
        except BaseExceptionGroup as group:
            ended, others = group.split(TrainerError)
            if others is not None:
                raise others from None  # This fault is not the trainer's. It ends the node.
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
                await self._handle_frame(frame)
            self._hears = False
            self._context.changes.notify_all()

    async def _watch(self) -> None:
        told = ""
        while True:
            await trio.to_thread.run_sync(self._running.check)
            if (wanted := self._running.waits_for) != told:
                self._context.state.set_state(StandingBy(wanted) if wanted else Loading())
                self._context.changes.notify_all()
                told = wanted
            if self._rests_on_wrong_theta:
                raise TrainerError("the trainer's work is based on a wrong θ", code="STATE-DIFFERS")
            await trio.sleep(self._context.timing.trainer_look_s)

    async def _run_then_drain(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run `task`. If `task` finds that the trainer has ended, first wait until `_listen` has
        processed all frames. The last frame may say why the trainer ended; then `_listen` raises a
        better error."""
        try:
            await task()
        except TrainerExited:
            while self._hears or self._has_unread_bytes():
                await trio.sleep(LAST_WORDS_LOOK_S)
            raise

    def _has_unread_bytes(self) -> bool:
        """Return whether the trainer's socket has unread bytes, or an unread end of file."""
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
            seen = self._context.changes.count
            orders = await self._orders_with_data()
            for order in orders:
                await self._send_order(order)
            measures = await self._measure_our_share() or await self._sampler.ask()
            if not orders and not measures:
                await self._context.changes.wait(since=seen)

    async def _orders_with_data(self) -> list[Order]:
        """Fetch the data of the due orders, and return the orders. Then sending them does not wait
        for the network. Sending must be fast: from the first order until the trainer has read θ,
        this node cannot apply an update to θ."""
        orders, held = self._orders_due(), list[Digest]()
        while (blocks := self._blocks_of(orders)) != held:
            await lease_data.paths_of(self._context, blocks)
            orders, held = self._orders_due(), blocks  # The lease may have grown in the meantime.
        return orders

    def _taken(self) -> bool:
        """Return whether the work that the trainer has offered was averaged into θ."""
        context, progress = self._context, self._progress
        if progress is None or not progress.offered:
            return False
        # If that step has been pruned, the answer is unknown. False is safe: the trainer loads θ.
        if not context.ledger.kept.start.step <= progress.step < context.ledger.snapshot.step:
            return False
        return any(
            each.peer == context.me for each in context.ledger.history.participants(progress.step)
        )

    def _may_read_theta(self) -> bool:
        """Return whether θ is at the ledger's head and nothing is about to change it."""
        context = self._context
        return (
            self._up
            and not self._rests_on_wrong_theta
            and context.outer.step == context.ledger.snapshot.step
            and not context.outer.lock.locked()
        )

    def _orders_due(self) -> list[Order]:
        context, state = self._context, self._context.ledger.snapshot
        if not self._up or state.phase is Phase.ENDED or context.has_finished:
            return []
        if (outer_step := context.known_outer_step(state.step)) is None:
            return []
        lease = state.leases.get(context.me, ())
        if not lease:
            self._progress = None  # If we get the same lease again in this step, start over.
        if not lease and self._may_read_theta():
            context.trainer.discard_work()
            context.state.set_state(StandingBy("for a place in the next roster"))
        if self._progress is None and ready_work.stands(context):
            return []  # The previous trainer's work is offered, so the arena must not change.
        taken = self._taken()
        orders = next_orders(self._progress, state.step, lease, outer_step.pace, taken=taken)
        return orders if orders and self._may_give(orders[0]) else []

    def _may_give(self, order: Order) -> bool:
        """Return whether `order` may be given now. All orders except AheadOrder (train on during a
        reduce) make the trainer read θ. A MergeOrder also waits until all blocks are trained."""
        if isinstance(order, AheadOrder):
            finishing = self._context.state.finishing is not None  # This work would be lost.
            return not self._rests_on_wrong_theta and not finishing
        waits = isinstance(order, MergeOrder) and self._to_train > 0
        return self._may_read_theta() and not waits

    def _blocks_of(self, orders: list[Order]) -> list[Digest]:
        trains = [each for each in orders if isinstance(each, TrainOrder | AheadOrder)]
        blocks = [block for each in trains for block in each.blocks]
        return [self._context.data_block(block) for block in blocks]

    async def _send_order(self, order: Order) -> None:
        context = self._context
        outer_step = context.outer_step(order.step)
        match order:
            case LoadOrder(step):
                frame: frames.ToTrainer = frames.Load(step)
                self._first_inner_step = outer_step.first_inner_step
                self._to_train, self._paths = 0, ()
            case MergeOrder(step):
                frame = frames.Merge(step)
                assert self._progress is not None
                self._first_inner_step = outer_step.first_inner_step
                self._paths = self._paths[self._progress.offered :]
            case RebaseOrder(step):
                frame = frames.Rebase(step)
            case TrainOrder(step, blocks) | AheadOrder(step, blocks):
                ahead = isinstance(order, AheadOrder)
                await self._set_rates(outer_step, ahead=ahead)
                paths = await lease_data.paths_of(context, self._blocks_of([order]))
                self._paths += paths
                before = len(self._progress.blocks) if self._progress else 0
                others = context.ledger.history.newest_participants(step)
                pull = eagerness(outer_step.manifest, others, context.me)
                begun = self._first_inner_step + before
                frame = frames.Train(step, paths, begun, ahead, *pull)
                self._to_train += len(blocks)
                if blocks and not ahead:
                    context.trainer.begin_inner_steps(before, before + len(blocks))
                    context.state.set_state(context.trainer.shown)
        self._progress = progress_after(self._progress, order)
        if not isinstance(order, AheadOrder):
            self._context.trainer.discard_work()
        self._note_use_of_theta()
        await self._send(frame)

    async def _send(self, frame: frames.ToTrainer) -> None:
        """Send `frame`, waiting for room in the socket. If that takes too long, `_watch` raises."""
        send, meanwhile = self._running.send, trio.from_thread.check_cancelled
        await trio.to_thread.run_sync(send, frame, meanwhile)

    async def _set_rates(self, outer_step: OuterStep, *, ahead: bool) -> None:
        """If an amendment has changed the learning rates, send the rates for `outer_step`. If
        `ahead`, send those for the next outer step, as far as they are known."""
        rates = outer_step.inner_rates
        if ahead:
            rates = inner_rates(self._context.about(outer_step.step + 1))
        if rates != self._rates:
            self._rates = rates
            await self._send(rates)

    async def _measure_our_share(self) -> bool:
        """Once per outer step, tell the trainer to measure θ on our share of the held-out blocks.
        Return whether this node had a share to measure."""
        context, step = self._context, self._context.ledger.snapshot.step
        if not self._may_read_theta() or self._asked_step == step:
            return False
        if not (share := evaluation_task.own_share(context)):
            return False
        paths = await evaluation_task.own_files(context, lambda: not self._orders_due())
        if not paths or not self._may_read_theta() or context.ledger.snapshot.step != step:
            return True
        self._asked_step, self._evaluating, self._held_out = step, True, share
        self._note_use_of_theta()
        await self._send(frames.Evaluate(step, paths))
        return True

    def _note_use_of_theta(self) -> None:
        """Update `theta_in_use`: whether the trainer may still read θ, because its report on an
        order is missing or it measures θ. `outer_task` does not change θ while this is True."""
        owes_report = self._progress is not None and self._answered_step != self._progress.step
        in_use = owes_report or self._evaluating or self._sampler.busy
        self._context.trainer.theta_in_use = in_use

    # -- reports of the trainer -------------------------------------------------------------------

    async def _handle_frame(self, frame: frames.Frame) -> None:
        context = self._context
        match frame:
            case frames.Hello():
                self._greet(frame)
            case frames.Resumed(step, state_step, trouble):
                context.journal.write(
                    "inner-state", step=step, resumed_from=state_step, trouble=trouble
                )
            case frames.Progress():
                self._answered_step = frame.step
                self._note_progress(frame)
            case frames.FragmentReady():
                await self._note_ready(frame)
                self._answered_step = frame.step
            case frames.Evaluated(step, loss, tokens):
                self._evaluating, self._sampler.warm = False, True
                evaluation_task.measured(context, step, loss, tokens)
            case frames.Generated():
                await self._sampler.note(frame)
            case frames.Failed(code, text, request) if request is not None:
                self._evaluating = False
                context.journal.write("evaluation-failed", code=code, reason=text)
                self._forget_damaged(self._held_out)
            case frames.Failed(code, text):
                blocks = self._progress.blocks if self._progress else ()
                self._forget_damaged([context.data_block(block) for block in blocks])
                raise TrainerError(f"the trainer cannot continue: {text}", code=code)
            case _:
                raise TrainerError(f"the trainer sent an unexpected {frame.kind} frame")
        self._note_use_of_theta()

    def _greet(self, hello: frames.Hello) -> None:
        context = self._context
        if hello.layout_digest != context.layout.digest:
            raise TrainerError("the trainer's layout differs from the run's", code="RUN-VERSION")
        self._up = context.trainer.up = True
        context.trainer.device = micro_batch_memory.in_words(context, hello)
        context.journal.write(
            "trainer-up",
            ranks=hello.ranks,
            device=hello.device,
            parameters=hello.parameters,
            micro_batch=hello.micro_batch,
        )
        context.own_heartbeat.send_now()

    async def _note_ready(self, ready: frames.FragmentReady) -> None:
        """Offer the work if it covers all blocks that are due from our currently agreed lease.

        If the work covers fewer blocks, the trainer has been told to train more, or soon will be.
        It will then change its weights, which must not be averaged until it is ready again.
        """
        context, lease = self._context, self._whole_lease_of(ready)
        if not lease:
            return
        if ready.block_paths != self._paths:
            raise TrainerError("the trainer did not train on its assigned blocks")
        assert self._progress is not None
        claimed = await ready_work.prepared(context, self._progress, ready, lease)
        if self._whole_lease_of(ready) != lease:
            return
        self._progress = replace(self._progress, offered=ready.blocks)
        self._running.useful = True
        context.alerts.clear(RESTARTED)
        await ready_work.offer_work(context, ready, lease, claimed)

    def _whole_lease_of(self, ready: frames.FragmentReady) -> tuple[int, ...]:
        """Return the due part of our currently agreed lease if `ready` covers exactly that part,
        otherwise (). Also return () if the work is based on a θ that has been found wrong: `_watch`
        is about to end this trainer, but an offer of its work would outlive it."""
        state, progress = self._context.ledger.snapshot, self._progress
        if self._rests_on_wrong_theta or progress is None:
            return ()
        if not ready.step == progress.step == state.step:
            return ()
        lease = state.leases.get(self._context.me, ())
        due = progress.due(lease, self._context.outer_step(state.step).pace)
        return due if progress.blocks == due and ready.blocks == len(due) else ()

    def _note_progress(self, progress: frames.Progress) -> None:
        context = self._context
        block_tokens = context.manifest.data.block_tokens
        context.journal.write(
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
        self._to_train = max(0, self._to_train - 1)
        ahead = self._progress is not None and bool(self._progress.offered)
        context.trainer.note_progress(progress, progress.computed_s(block_tokens), ahead=ahead)
        if not ahead:
            context.state.set_state(context.trainer.shown)

    def _forget_damaged(self, blocks: Sequence[Digest]) -> None:
        """Read these blocks, so that the store finds the damaged ones and counts them as missing.
        The next trainer or measurement then gets new copies."""
        for block in blocks:
            with suppress(StoreError):
                self._context.store.get_chunk(block)
