"""Trains the model between two outer steps, in processes separate from the node's.

This is the only package that imports torch, and only two of its four subpackages do:

    rank/      one rank's process: model, optimizer, parallelism, training loop     loads torch
    tools/     programs that load a model: chat, parity of exports, benchmarks      loads torch
    host/      processes around the ranks: launch, supervise, find what fits        without torch
    formats/   layouts and files that the node and the ranks share                  without torch

The node and the command line import host/ and formats/ only. `__main__` is the rank's program.
"""
