"""Trains the model between two outer steps, in processes of its own.

The only package that imports torch, and not all of it does. What there is, by who uses it; a test
holds this map to the code.

A rank's process:

    __main__, loop           from its start to Stop: obey a frame, or do one inner step
    model, products          the mathematics; and of bf16 where a CPU lacks instructions for it
    parallelize, ranks       how it is spread over the ranks, and how they find each other
    own_gpu                  whether torch can compute on this rank's GPU, and has room there
    batch, optimizer, muon   one inner step
    arena, deviation         the weights against the node's θ; where an eager trainer is beside it
    inner_state              the optimizer's state on disk
    remote                   the node's side of all this, where torchrun has started the rank

The node and the command line, without torch:

    supervisor, launch       starts ranks on this machine, hears them and ends them
    external, gathering      the same for ranks that torchrun starts
    watch                    when a silent trainer is stuck, and restarting it pointless
    fitting, cost, gpus      what fits into memory; whether there is a GPU
    peak                     arithmetic of a step, and MFU
    shapes, genesis          the layout of θ, and the first one
    schedule                 the inner learning rate
    inner_format             the optimizer's state as a file
    inner_bounds             what another's may be
    huggingface              names and config.json of Hugging Face's models

Ranks use some of these as well.

An exported folder, in chat and for parity:

    exported, generating     our model from the folder, and text from it
    parity                   its logits beside those of transformers; a program

Benches, and the simulator of learning:

    speed, ticking           inner steps to be timed; programs
    replica                  a peer's training without FSDP2, a dozen in one process
"""
