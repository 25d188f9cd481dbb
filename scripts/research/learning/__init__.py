"""Measure what averaging costs in loss, with simulated peers in one process.

- settings: all numbers of an arm, which is one training run of a comparison
- tuning, search, scratch, arms: the choice of learning rates, and the list of comparisons
- corpus: the text, tokenised once
- averaging: the ring's arithmetic and order of rounding, without sockets
- swarm: peers that train, average and take outer steps according to the sync mode
- checkpoint, trial: run one arm, from its start or from its checkpoint, to its record
- queue: run all missing arms in several processes, over several sessions
- record, results: records of arms, as JSON lines
- copying, compared, report: losses compared with those of a reference, in tables
- pictures: plots

Model, loss, optimizer and schedule are those of the trainer. Quantisation, addition and the outer
step use the kernels and the plan of a real ring. The network, the ledger and FSDP2 are left out.
"""
