"""The libp2p host, built so that no peer can bring it down or fill its memory.

hardening          build and run the host
handshakes         limits on the handshakes of peers that dial us
identify_limits    limits on what a peer can tell us about itself and others
bounds             limits on the memory that one connection can occupy
window_updates     window updates for half a window at a time
"""
