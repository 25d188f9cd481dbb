"""One rank's training: model, optimizer, parallelism, loop."""
