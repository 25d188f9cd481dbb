"""Proofs about the work of peers, as pure functions: without clocks, sockets, disks or torch.

hidden_states    258 bytes for 32 tokens, which show which weights were run over them (TOPLOC)
text_proof       the file that proves which weights generated a text
"""
