"""The page of a node: a web server in a process of its own, `python -m p2ptrain.web`.

It reads the node's control socket, and `series.db` and the ledger in its home (the folder with a
node's files), read-only. It never imports the node, torch or libp2p, so a fault here cannot affect
training. The page itself is `static/page.html`.
"""
