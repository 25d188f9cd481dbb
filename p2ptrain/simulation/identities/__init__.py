"""A second simulated world: processes with identities that are restarted, restored and copied.

world       the world and its faults
process     one process: the identity checks of a node
homes       the folder with a process's files, which survives crashes
checkers    the guarantees about identities
"""
