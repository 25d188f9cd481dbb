"""Every order in which three real ledgers can hear each other, up to a bound.

The model. Three members decide two heights: a roster, then a commit that ends the run. They wish
for different values at both, so that rounds compete. A world is the three members with their disks,
and the set of all that was ever said. From a world leads a step for

- each message ever said, to its receiver: so messages are delayed, reordered, repeated at will; one
  that is never delivered is one that was lost, without any bound on how many are;
- each member, while `timeouts` last: its round has lasted too long;
- each member, while `crashes` last: it stops and starts again from its disk, between two events or
  between two durable writes of one, with everything or nothing of what it said in between heard.

Worlds that are the same in all that matters (`copying.key_of`) are one world. In each world: the
chains agree, every certificate verifies, and nobody has ever contradicted what it said.

The members are `ledger.core.Ledger`, copied attribute by attribute; nothing is modelled twice. What
a member does with one message depends on that member alone, so each pair is computed once, and a
world is a few small integers.

Limits: time passes in timeouts only; what is reported (who is ready, done, down) is fixed; pages of
entries that are asked for are lost (outcomes, which say the same, are not); signatures are cheap
ones; a second crash while starting again is not split. What members remember of others' signatures
is explored on request (`witnesses`), since it makes many worlds of one.
"""
