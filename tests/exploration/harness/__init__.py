"""Explore every order in which three real ledgers can receive messages, up to a bound.

The model. Three members decide two heights: a roster, then a commit that ends the run. The members
prefer different values at both heights, so that their proposals compete. A world consists of the
three members with their disks, and the set of all messages ever sent. These steps lead from one
world to the next:

- A message arrives at its receiver. Any message ever sent can arrive at any time, so messages are
  delayed, reordered and repeated. A lost message is one that never arrives.
- A round of a member times out, at most `timeouts` times in total.
- A member crashes and restarts from its disk, at most `crashes` times in total. It crashes between
  two events, or between two durable writes of one event. The messages that it sent between these
  two events or writes were either all received or all lost.

Worlds that behave equally (`copying.key_of`) count as one world. In each world the exploration
checks that the chains agree, that every certificate verifies, and that no member has contradicted
itself.

The members are copies of the real `ledger.core.Ledger`. The reaction of a member to a message
depends only on that member. The reaction to each message is therefore computed once for each
member, and a world is represented by a few small integers.

Limits. Time passes only in timeouts. Reports (peers that are ready, done or down) are fixed.
Requested pages of entries never arrive, but outcomes with the same content can. Signatures are
cheap fakes. A second crash between the writes of a restart is not explored. The members' memory of
other members' signatures is explored only on request (`witnesses`), since it multiplies the number
of worlds.
"""
