"""Play transcripts, also called stories: text files with commands for a few ledgers, each block
followed by the expected trace.

    # The proposer dies after one vote. The next proposer adopts the entry of that vote.

    members a b c
    ready a b c
    ----
    b writes vote 1/0 e1 = roster 0.0 voters a b c averaging a:200 b:200 c:200
    b -> a c: propose 1/0 e1

    deliver b->a
    expect a height 0
    ----
    …

`1/0` means height 1, round 0. `roster 0.0` is the roster of outer step 0, attempt 0. `a:200` means
that `a` trained on 200 tokens. The ledgers are real. `STORY_WORDS` in `story` lists the commands,
and `_FACTS` in `looking` lists the facts that `expect` can check.

`python -m tests.ledger.transcript_player --rewrite FILE…` writes the current trace into the file.
Read the diff afterwards. A story with a failing `expect` is not rewritten.
"""
