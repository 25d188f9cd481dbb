"""Proofs about the work of peers, as pure functions: without clocks, sockets, disks or torch.

claims           the signed document that fixes a contribution
average          recompute any block of an update from contributions, and name a peer that lied
signed_sums      the statement with which a peer answers for a sum that it sent
hidden_states    short proofs of the hidden states that a model had, for a text or a batch
text_proof       the file that says which certified weights generated a text
sketches         256 integers that tell a contribution's length and its angle to others
stated_sketch    the signed statement of a participant's sketch
sketch_parts     the parts of a vector whose sketches are stated
sketch_collection  which claims and statements of an attempt are here, and whose are missing
sketch_messages  the request for claims and statements, and its reply
sketch_rules     rules for length, direction, copies and the sum of all sketches
checkpoints      chains of checkpoints, of which a beacon opens one link for repetition
moments          the inner optimizer's state in 2 bytes a parameter, for checkpoints
outcome          judge a contribution by the losses with and without it
"""
