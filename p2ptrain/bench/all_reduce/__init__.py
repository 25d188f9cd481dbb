"""`p2ptrain bench allreduce`: our all-reduce against those of other libraries.

comparison                            the command: all measurements, and their figures
averaging, slow_link                  one peer of our all-reduce
beside, gloo, hivemind_peer, sockets  other libraries in the same run
orders                                the best and the worst ring order with one slow link
plot                                  charts of the results
"""
