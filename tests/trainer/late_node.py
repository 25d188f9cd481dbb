"""A node and its ledger as a trainer sees them, with random delays and crashes.

Orders are those of `node.orders`, at the times when `node.training` would give them. Frames and
answers wait in queues. Each method is an event that can happen next, and `happen` chooses one.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ipc import frames
from p2ptrain.ipc.frames import Frame
from p2ptrain.ledger.chain import leases
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.sync.trainer_orders import (
    AheadOrder,
    Blocks,
    LeasePace,
    LoadOrder,
    LocalWork,
    MergeOrder,
    Order,
    RebaseOrder,
    TrainerProgress,
    TrainOrder,
    next_orders,
    progress_after,
)
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, StallWatch
from tests.trainer.ought import Offered, Ought, Vector

US, OTHER, ELSE = PeerId("us"), PeerId("other"), PeerId("else")
FOR_EVER = 1e12
TOLERANCE = 1e-2
"""Largest allowed difference of a weight. The traces of blocks (see `ought`) are whole numbers, but
weights are not if the mode is eager or mixes weights."""


class Trainer(Protocol):
    """The trainer under test, run one frame or one inner step at a time. `said` holds its
    answers."""

    said: list[Frame]

    @property
    def busy(self) -> bool: ...
    def obey(self, frame: Frame) -> None: ...
    def inner_step(self) -> None: ...


@dataclass
class LateNode:
    chance: random.Random
    pace: LeasePace
    start: Callable[[], tuple[Trainer, Ought]]
    theta: np.ndarray
    local: np.ndarray
    move: Callable[[int], Vector]
    """Returns the change of θ in an outer step. It is zero outside the fragment of that step."""
    block_tokens: int
    eager: bool = False
    may_amend: bool = True

    step: int = 0
    """The step of the ledger. `outer_step` is the step of θ."""
    outer_step: int = 0
    book: Leases = field(init=False)
    took_part: dict[int, bool] = field(default_factory=dict)
    amended: dict[int, LeasePace] = field(default_factory=dict)
    roster: tuple[int, int] | None = None
    """Our tokens and blocks in the current reduce."""
    averaged: bool = False
    moves: dict[int, Vector] = field(default_factory=dict)
    evicted_step: int | None = None

    progress: TrainerProgress | None = None
    work: LocalWork | None = None
    offer: Offered | None = None
    """The expected contents of the current `work`."""
    paths: tuple[str, ...] = ()
    to_train: int = 0
    answered_step: int | None = None
    has_data: bool = True

    committed: Counter[int] = field(default_factory=Counter)
    contributed: dict[int, Counter[str]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.book = leases.top_up(Leases({}), (US, OTHER), self.lease_blocks)
        self.start_trainer()

    # -- what is agreed -------------------------------------------------------------------------

    @property
    def lease_blocks(self) -> int:
        return self.pace.stride + self.pace.overlap

    @property
    def lease(self) -> Blocks:
        return self.book.held.get(US, ())

    @property
    def ready(self) -> bool:
        """Whether the other members know that we are ready."""
        return self.work is not None and self.work.step == self.step and bool(self.lease)

    def open_roster(self) -> None:
        """Open a reduce, with us if we are ready. An earlier attempt may have failed."""
        if self.ready and self.chance.random() < 0.8:
            assert self.work is not None
            self.roster, self.averaged = (self.work.tokens, len(self.work.blocks)), False

    def reduce(self) -> None:
        """Average our contribution. The reduce may still fail and be repeated."""
        if self.roster is None or self.outer_step != self.step or self.work is None:
            return
        ours = self.work.tokens, len(self.work.blocks)
        if self.roster == ours and self.lease[: ours[1]] == self.work.blocks:
            self.check_work()
            self.averaged = self.chance.random() < 0.7

    def commit(self) -> None:
        """Commit the outer step, with our work if the reduce has averaged it."""
        blocks = 0
        if self.roster is not None and self.averaged:
            assert self.offer is not None
            blocks = self.roster[1]
            assert (
                self.roster[0]
                == blocks * self.block_tokens
                == self.block_tokens * len(self.offer.paths)
            )
            self.committed.update(self.lease[:blocks])
            self.contributed.setdefault(self.step % self.fragments, Counter()).update(
                self.offer.within
            )
        elif self.roster is not None and self.chance.random() < 0.5:
            return  # A second attempt is still in time.
        done = [(US, blocks)] if blocks else []
        other = (OTHER, len(self.book.held[OTHER]))
        self.took_part[self.step] = blocks > 0
        self.moves[self.step] = self.move(self.step)
        self.next_step(leases.commit(self.book, [*done, other]), leases.top_up)

    def skip(self) -> None:
        self.took_part[self.step] = False
        self.next_step(self.book, leases.extend)

    def next_step(self, book: Leases, grant: Callable[..., Leases]) -> None:
        self.step, self.roster, self.averaged = self.step + 1, None, False
        self.pace = self.amended.pop(self.step, self.pace)
        members = [each for each in (US, OTHER) if each in book.held]
        self.book = grant(book, members, self.lease_blocks)

    def amend(self) -> None:
        """Amend H from the next outer step on. H must not be smaller than the overlap."""
        if self.may_amend:
            stride = self.chance.randint(max(1, self.pace.overlap), self.pace.overlap + 3)
            self.amended[self.step + 1] = replace(self.pace, stride=stride)

    def evict(self) -> None:
        self.roster, self.evicted_step = None, self.step
        self.book = leases.give_back(self.book, [US])
        if self.chance.random() < 0.3:  # Another peer is admitted and takes our blocks.
            self.book = leases.top_up(self.book, [ELSE], self.lease_blocks)
            self.book = leases.commit(self.book, [(ELSE, self.lease_blocks)])
            self.book = leases.give_back(self.book, [ELSE])

    def admit(self) -> None:
        if US not in self.book.held:
            self.book = leases.top_up(self.book, [US], self.lease_blocks)

    # -- what the node does ---------------------------------------------------------------------

    @property
    def theta_in_use(self) -> bool:
        return self.progress is not None and self.answered_step != self.progress.step

    def apply(self) -> None:
        """Move θ by one outer step, as the ledger has already done."""
        if self.outer_step < self.step and not self.theta_in_use:
            if (moved := self.moves.pop(self.outer_step, None)) is not None:
                self.theta += moved.astype(np.float32)
            self.outer_step += 1

    def orders_due(self) -> list[Order]:
        lease, progress = self.lease, self.progress
        if not lease and self.outer_step == self.step:
            self.work = None
        stands = self.work is not None and self.work.stands_for(self.step, lease, self.pace)
        if progress is None and stands:
            return []
        taken = progress is not None and progress.step < self.step and self.took_part[progress.step]
        offered = progress is not None and progress.offered > 0
        orders = next_orders(progress, self.step, lease, self.pace, taken=taken and offered)
        return orders if orders and self.may_give(orders[0]) else []

    def may_give(self, order: Order) -> bool:
        waits = isinstance(order, MergeOrder) and self.to_train > 0
        return isinstance(order, AheadOrder) or (self.outer_step == self.step and not waits)

    def order(self) -> None:
        if self.has_data:
            for each in self.orders_due():
                self.give(each)

    def data(self) -> None:
        """Deliver the blocks that the trainer is to train next, or leave them missing."""
        self.has_data = not self.has_data

    def give(self, order: Order) -> None:
        frame: Frame
        match order:
            case LoadOrder(step):
                frame, self.to_train, self.paths = frames.Load(step), 0, ()
            case MergeOrder(step):
                assert self.progress is not None
                frame, self.paths = frames.Merge(step), self.paths[self.progress.offered :]
            case RebaseOrder(step):
                frame = frames.Rebase(step)
            case TrainOrder(step, blocks) | AheadOrder(step, blocks):
                paths = tuple(map(str, blocks))
                self.paths += paths
                pull = (0.5, 0.5, 0.5) if self.eager else ()
                frame = frames.Train(step, paths, 0, isinstance(order, AheadOrder), *pull)
                self.to_train += len(blocks)
        self.progress = progress_after(self.progress, order)
        if not isinstance(order, AheadOrder):
            self.work = self.offer = None
        self.watch.sent(frame, self.now)
        self.inbox.append(frame)

    def hear(self) -> None:
        if not self.outbox:
            return
        frame, offer = self.outbox.popleft()
        self.watch.received(frame, self.now)
        match frame:
            case frames.Progress():
                self.to_train = max(0, self.to_train - 1)
            case frames.FragmentReady():
                assert offer is not None
                self.note_ready(frame, offer)
            case _:
                raise AssertionError(f"{frame}")
        self.answered_step = frame.step

    def note_ready(self, ready: frames.FragmentReady, offer: Offered) -> None:
        progress = self.progress
        if progress is None or not ready.step == progress.step == self.step or not self.lease:
            return
        due = progress.due(self.lease, self.pace)
        if progress.blocks == due and ready.blocks == len(due):
            assert ready.block_paths == self.paths
            self.progress = replace(progress, offered=ready.blocks)
            self.work, self.offer = LocalWork(ready.step, due, ready.tokens), offer

    # -- the trainer ----------------------------------------------------------------------------

    def start_trainer(self) -> None:
        self.trainer, self.ought = self.start()
        self.fragments = len(self.ought.fragments)
        self.inbox: deque[Frame] = deque()
        self.outbox: deque[tuple[Frame, Offered | None]] = deque()
        self.progress, self.paths, self.to_train, self.answered_step = None, (), 0, None
        self.watch = StallWatch(self.now, AnswerTimeout())
        self.watch.received(frames.Hello(0, 1, Digest("0" * 64), 1, "cpu", 1), self.now)

    def kill(self) -> None:
        self.start_trainer()

    def restart(self) -> None:
        """Restart the node itself, which forgets the reported work."""
        self.work = self.offer = None
        self.averaged = False
        self.local[:] = np.nan
        self.start_trainer()

    def obey(self) -> None:
        if self.inbox:
            frame = self.inbox.popleft()
            self.trainer.obey(frame)
            self.compare(self.ought.obey(frame, self.theta.astype(np.float64)))

    def inner_step(self) -> None:
        if self.trainer.busy:
            self.trainer.inner_step()
            self.compare(self.ought.inner_step())

    def compare(self, due: Offered | None) -> None:
        """Compare the trainer's last answers and written weights with the expected ones."""
        said, self.trainer.said = self.trainer.said, []
        ready = [frame for frame in said if isinstance(frame, frames.FragmentReady)]
        assert len(ready) == (due is not None), (said, due)
        if due is not None:
            tokens = len(due.paths) * self.block_tokens
            assert ready == [replace(ready[0], step=due.step, tokens=tokens, block_paths=due.paths)]
            self.check_local(due)
        self.outbox.extend((frame, due if frame in ready else None) for frame in said)

    def check_local(self, due: Offered) -> None:
        inside = due.weights != 0
        np.testing.assert_allclose(self.local[inside], due.weights[inside], rtol=0, atol=TOLERANCE)

    def check_work(self) -> None:
        """Check that the reported work stays in the shared memory for as long as the report is
        valid."""
        if self.work is not None and self.work.step == self.step:
            assert self.offer is not None
            self.check_local(self.offer)

    # -- random events -----------------------------------------------------------------------------

    def happen(self, odds: dict[str, float]) -> None:
        (name,) = self.chance.choices(list(odds), list(odds.values()))
        self.do(name)

    def do(self, name: str) -> None:
        self.now += 1.0
        self.log.append(name)
        getattr(self, name)()
        self.check_work()
        idle = not (self.trainer.busy or self.inbox or self.outbox)
        overdue = self.watch.overdue(self.now + FOR_EVER)
        assert not (idle and overdue), overdue
        if self.trainer.busy and not self.inbox and not self.outbox:
            assert overdue, "the watch would not notice if this busy trainer were stuck"

    def settle(self) -> None:
        """Let node and trainer do everything that is due."""
        self.has_data = True
        for _ in range(1000):
            if self.inbox:
                self.do("obey")
            elif self.outbox:
                self.do("hear")
            elif self.orders_due():
                self.do("order")
            elif self.trainer.busy:
                self.do("inner_step")
            elif self.outer_step < self.step:
                self.do("apply")
            else:
                return
        raise AssertionError("the system never becomes idle")

    def commit_calmly(self) -> None:
        """Commit the next outer step without faults, and check that it contains our work."""
        self.settle()
        if self.step == self.evicted_step and not self.ready:
            # A peer admitted again in the same outer step, with the same blocks, is left out.
            self.do("skip")
            self.settle()
        assert self.ready, "the trainer is not waiting for anything"
        assert self.work is not None
        self.roster, self.averaged = (self.work.tokens, len(self.work.blocks)), True
        self.do("commit")
