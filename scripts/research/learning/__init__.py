"""What averaging costs in loss: simulated peers in one process, and the comparisons made of them.

settings            all numbers of an arm
tuning, arms        how the rates are chosen, and what is compared with what
corpus              the text, tokenised once
averaging           the ring's own arithmetic and order of rounding, without sockets
swarm               peers that train, average and take outer steps, as the sync modes say
checkpoint, trial   one arm from its start, or from where it was cut, to its record
queue               all arms that lack, in several processes, over as many sessions as it takes
results             records as JSON lines
compared, report    losses beside those of a reference, and the tables made of them
pictures            plots

Model, loss, optimizer and schedule are the trainer's; quantising, adding and the outer step are the
kernels', driven by the plan of a real ring. What is not here is the network, the ledger's
agreement, and FSDP2.
"""
