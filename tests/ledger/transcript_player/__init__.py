"""Stories of a few ledgers as text files: commands, and below them what the ledgers then do.

    # The proposer dies after one vote: what it had accepted is found and adopted.

    members a b c
    ready a b c
    ----
    b writes vote 1/0 e1 = roster 0.0 voters a b c averaging a:200 b:200 c:200
    b -> a c: propose 1/0 e1

    deliver b->a
    expect a height 0
    ----
    …

`1/0` is height 1, round 0; `roster 0.0` is of outer step 0, attempt 0; `a:200` has 200 tokens.
The ledgers are real ones; `STORY_WORDS` in `story` lists the commands, `looking` what can be
expected. The trace can be written anew (`python -m tests.ledger.transcript_player --rewrite FILE…`,
then read the difference), but not in a story of which an `expect` fails: rewriting hides nothing.
"""
