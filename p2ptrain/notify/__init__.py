"""Tell the owner of a node what happens: by a web hook, by ntfy, or by a program.

A process of its own does this. It reads the node's series and asks its control socket, and the node
never waits for it. It does not know what the events mean to the node.
"""
