"""The code that runs in each rank (process) of a trainer: model, optimizer, parallelism, loop."""
