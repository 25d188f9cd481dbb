"""Every error code in words, for `p2ptrain explain CODE`.

Each entry says what the code means, whose fault it likely is, and what helps. A test walks the
sources and fails for a code without an entry, so every code can be explained.
"""

from __future__ import annotations

import re

_TEXT = """
# peers
PEER: Another peer has a problem. Your node and the other peers are not affected.
PEER-UNREACHABLE: A peer cannot be reached at present.
PEER-LOST: The connection to a peer broke. The peer may have stopped, or the network failed.
PEER-TOO-SLOW: A peer did not answer in time. Your node stops waiting for it in this exchange or
    request; the peer may try again later.
RELAY-UNREACHABLE: A member that offers to relay cannot be reached. Your node tries another one.
RELAY-REFUSED: A member does not relay for your node now: its limits are reached, or the other end
    did not come. Your node tries another one.
RELAY-LOST: A connection through a relay broke. The relay, or the peer behind it, may have stopped;
    your node does not blame the peer.
RELAY-TOO-SLOW: A relay, or the peer behind it, did not answer in time. Your node does not blame the
    peer.
RELAY-FAULT: A connection through a relay failed. Your node does not blame the peer behind it.
PEER-REFUSED: A peer refused a request, for instance because your node is not on its allowlist yet.
PEER-FAILED: A peer reports that it could not carry out a request.
PEER-PROTOCOL: A peer sent a message that the protocol does not allow, and your node dropped the
    peer. The peer runs another version, has a fault, or is hostile. Your node is not harmed.
PEER-ID: The text is not a peer id. A peer id begins with 12D3KooW and has 52 characters; `p2ptrain
    id` prints your node's own.
PEER-UNKNOWN: None of the peers in question has this name or an id with this beginning or end. Give
    the whole peer id, which always works.
PEER-AMBIGUOUS: Several peers have this name, or ids with this beginning or end. Anybody can make an
    identity with a given name, so compare the whole peer id with the one that the volunteer sent.

# addresses
ADDR-SYNTAX: The address is not a multiaddr. A valid one looks like
    /ip4/203.0.113.7/tcp/4201/p2p/12D3KooW…; copy the whole address that the other node prints.
ADDR-NO-PEER-ID: The address is incomplete: its last part, /p2p/12D3KooW…, is missing. Without this
    part, your node cannot tell whether the right peer answers. Ask for the whole address.
ADDR-NONE: There is no address to dial: you gave no --bootstrap, and this node has not met peers
    before. Ask the organiser for an address.
ADDR-SELF: The address is this node's own. Give the address of another peer.
ADDR-DATA-PRIVATE: You gave --announce, but this node's address for bulk data is private. Add
    --data-announce HOST:PORT with a public IP address.
ADDR-LISTEN: The address to listen on is not valid. Without --listen, a node listens at all
    addresses. An example is /ip4/0.0.0.0/tcp/4201; with port 0 the system chooses a port.
ADDR-LOOPBACK: The address points to the machine that dials it (127.0.0.1). It works only for
    several nodes on one machine.
ADDR-PRIVATE: The address belongs to a private network or to a provider's network, and cannot be
    dialled from the internet. Give the seed a public address with --announce, and let its router
    forward that port to it.
INVITE-BROKEN: The text is not a complete invitation. An invitation begins with p2ptrain: and is one
    long word. A part of it was cut off, or a character was mistyped; copy it again as a whole.
INVITE-VERSION: A different version of p2ptrain made the invitation. Upgrade, or ask for an address.

# the network
NET-UNREACHABLE: No peer could be reached. The lines above show what happened with each address.
NET-DNS: The host name in the address has no DNS entry: it is misspelt or outdated, or DNS does not
    work here.
NET-REFUSED: The other machine is up, but no program listens on that port. Most likely the peer is
    down; your machine is not at fault. Wait, or ask for a new address.
NET-TIMEOUT: There was no answer at all. The other machine is off, or a firewall drops connections
    to this port.
NET-NO-ROUTE: This machine has no route to the address: it is offline, or the address is IPv6 and
    there is no IPv6 here.
NET-SILENT: A connection was made, but no data came. The peer is overloaded, or another program
    listens there.
NET-NOT-LIBP2P: The program on that port is not a p2ptrain node. Check the port.
NET-RESET: A firewall or the peer cut the connection off while it was being made.
NET-WRONG-ID: The peer that answers is not the one that the address names. The address is outdated,
    or the peer that answers impersonates the one that you want. In both cases ask for a new
    address.
NET-OUTBOUND-ONLY: This is a warning: other peers cannot dial this node. It takes part through
    connections that it makes itself, by hole punching, and through other members. If you forward a
    port to it, exchanges are faster, and it can help others.
ORDER-BARRED: Two members are neighbours in an exchange, but other peers cannot dial either of them,
    so they cannot connect. Each such exchange fails once and continues without one of the two. To
    prevent that, forward a port to the data plane of one of them.
FLOOD: More messages arrive than this node can process, so it drops some. Peers repeat important
    messages. If one peer is the cause, the journal names it.
LISTEN-FAILED: This node could not listen on the address that you gave. Choose another with
    --listen, or let the system choose a port with /tcp/0.
LOCK-FOLDER: The folder for the locks of ports is p2ptrain-UID in $XDG_RUNTIME_DIR, or in the folder
    for temporary files. It belongs to another user, or others can write to it. Set XDG_RUNTIME_DIR
    to a folder of your own.
PORT-IN-USE: Another program, or another node, already listens on that port.
SHUT-DOWN: This node's network has been closed; the node is stopping.
ISOLATED: Fewer members can be reached than the run needs to agree on anything. Nothing is lost:
    training continues when enough members are back. Messages from members off the allowlist are
    ignored; the organiser can admit these members again.

# settings, homes and runs
USAGE: The command does not have this option or argument. Add --help to see its options.
CONFIG: A setting is wrong. The message names the setting, its value, and what the value should be.
SCHEDULE: The text is not a schedule. Write windows of local time such as 22:00-07:00, or
    mon-fri 18:00-08:00, separated by commas.
PAUSE-UNAVAILABLE: You want the node to pause on battery, while other programs use the GPU, or while
    somebody uses the machine, and this machine does not report that. The node then trains at such
    times too.
SERVICE: The systemd unit cannot be written or started. The lines above show the reason.
NOTIFY: A target of p2ptrain notify is invalid, unknown or does not accept messages. The message
    says which. The node goes on without it.
SERVICE-NONE: This machine has no systemd for its users. Start the node with another init system, or
    with cron at boot.
HOME: The folder cannot be used as a home: it is a file, it belongs to another user, or its disk is
    read-only. Choose another with --home.
HOME-UNSAFE: Another user of this machine could write to the home, or a file in it is a symbolic
    link. Such files could make a node contradict its own votes or overwrite files elsewhere, so it
    does not start. The message shows the command that repairs the home.
RUN-FILE: A document of the run in this home is damaged or belongs to another run. Move the document
    away; a node fetches it again.
RUN-NONE: The command needs a run, and this home has none.
RUN-EXISTS: This home already has a run, and a second one would overwrite its documents.
CONSENT: A node asks you before it takes part in a run for the first time. There was no terminal to
    ask at, or your answer was no. Use --yes to agree beforehand.
RUN-MISMATCH: The peer serves a different run from the one that you asked for, or from the one in
    this home. Compare the two run ids. Each run needs a home of its own: --home DIR.
RUN-VERSION: The run was made for another version of p2ptrain.
RUN-ENDED: The run has completed all its outer steps, so training is over.
SIGNATURE: The signature of a document is wrong: the document was altered on the way, or it is a
    forgery. The document is not used.
ALLOWLIST-SIGNER: An allowlist is not signed by the run's organiser. The list is not used.
ALLOW-UNHEARD: Each allowlist has a number that is used once. No peer could be asked whether there
    is a newer list than the one in this home, so nothing was signed. If you are sure that there is
    no newer list, use --anyway.
ALLOW-QUORUM: A peer that is taken off the allowlist keeps its vote until the next roster (list of
    members), but the others no longer listen to it. Too few voters would be left to agree on that
    roster, so nothing was signed. If you have just removed other peers, try again after the next
    roster.
DENIAL-SIGNER: A denial of a request to join is not signed by the run's organiser. The denial is not
    used.
TOKEN-SIGNER: The token in an invitation or a request to join is not signed by the run's organiser.
    It does not admit anybody.
DENY-LISTED: The peer is on the allowlist, so there is no request to deny. Remove the peer from the
    list with: p2ptrain peers revoke PEER.
AMEND-SIGNER: An amendment is not signed by the run's organiser. The change is not made.
AMEND-LATE: The amendment starts at an outer step that has begun, or that begins before members can
    agree. Choose a later step.
AMEND-ORDER: An amendment must start at a later outer step than all amendments before it.
AMEND-VALUE: The run cannot continue with the values of this amendment, or it has these values
    already. The message says which.
AMEND-FAR: The amendment changes a learning rate by more than a factor of ten, or starts more than a
    hundred outer steps ahead. This is usually a typing error, so nothing was signed. If you mean
    it, use --far.
AMEND-DIFFERS: The run's ledger describes an amendment differently from the document that the
    organiser signed. Show this to the organiser.
INFLUENCE-BROKEN: The run's voters certified an update that moves a weight further than the manifest
    allows. Most of the voters lie, or run a different program. Your node does not apply the update
    and stops. Do not start it again for this run; show the entry to the organiser.
AMEND-MISSING: Members have agreed on an amendment that your node does not have yet. The node asks
    all members for it, and waits before the outer step at which it starts. In an organiser's home
    that lacks the amendment, no further amendments can be signed.
BRANCH: The run has too few voters for a quorum, and continues on a branch of its ledger, or will do
    so soon. If the missing voters come back with a chain that outranks the branch, the work of the
    branch is dropped.
NOT-ENCRYPTED: The run's manifest turns off encryption, so anyone on the network path can read and
    change bulk data. Use such a run only in networks where you trust everyone.
DATA: A data block is damaged or was not made for this run. The node fetches it again.
DATA-SOURCE: The training data cannot be read, is empty, or has an invalid line. The message names
    the file and the line.
EXTRA-MISSING: The command needs a package that is not installed with p2ptrain. Install it with the
    command that the message shows.

# permissions and identities
AUTH-PENDING: Your node is not on the run's allowlist yet. It has asked to join. The organiser
    admits it with: p2ptrain peers approve PEER (p2ptrain id prints the id). A node that waits
    continues by itself once it is admitted.
AUTH-DENIED: The organiser has denied your node's request to join, or your node is not allowed to do
    what it asked for. The message shows the organiser's reason and until when it holds, if there is
    one. Ask the organiser, who can still admit the node with: p2ptrain peers approve PEER.
AUTH-REVOKED: The organiser has removed your node from the run's allowlist, or the delegate that
    admitted it is no longer a delegate.
AUTH-READER: The organiser has changed your node's role from trainer to reader. Start the node again
    to serve the run without training, or ask the organiser.
WEIGHTS-PRIVATE: The run does not give its weights to people who are not admitted to it: its
    organiser did not set public.weights in the run file. Ask the organiser to admit you as a
    reader. In an open run, use p2ptrain ckpt fetch, which needs no admission.
AUTH-ORGANISER: Only the holder of an organiser's key can amend a run or change its allowlist. The
    key is in the home from which the run was published, or in the home of a co-organiser.
ALLOW-MERGE: Organisers signed two allowlists at the same time. All nodes use one of them, and it
    lacks decisions of the other one. Approve or revoke the named peers again; the command merges
    both lists, and the other organisers sign the result.
ALLOW-FULL: The allowlist has reached its limit of 4,096 peers, or of 2,048 peers whose admission
    was changed. No further peer can be added.
HAND-OVER-ALONE: The run has one organiser, and its key is lost. Nobody else may sign for it, so the
    key cannot be replaced. Delegates can still admit peers. Name co-organisers in the next run.
HAND-OVER-KEY: The key that you want to replace does not sign for the organisers now, or the new key
    is or was an organiser's already. Each key can be replaced once.
PROPOSAL: The text or file is not a proposal of an organiser of this run. Copy the whole string, or
    ask for the file.
PROPOSAL-OLD: The proposal was made from an older allowlist, or its number is used already. Ask the
    organiser who made it to repeat the command.
GRANT-REVOKED: An organiser has revoked or denied this peer, so a delegate cannot admit it. Ask an
    organiser to approve it.
GRANT-FULL: A delegate can admit 64 peers, and has admitted as many. An organiser can name the
    delegate again, which allows 64 more.
ROLE-READER: Your node is admitted as a reader. It fetches and serves the run, but never trains or
    votes.
ROLE-TRAINER: Your node started as a reader, and the organiser lets it train now. Start it again.
ID-IN-USE: A node with this identity is already running. Two of them would vote twice. Give each
    node a --home of its own, and never copy an identity.key.
VOTER-LIED: A voter signed two statements that contradict each other, which proves that it lied. The
    voter is evicted. p2ptrain ledger evidence shows the proof.
ID-MODE: Other users of this machine can read the identity key. Make it private: chmod 600.
ID-BROKEN: The identity key is damaged, or the file is something else. Restore it from a backup, or
    move it away to start as a new peer.

# this machine
MACHINE-UNFIT: This machine cannot take part. The message says what the machine lacks.
GPU-NONE: You asked for a GPU and none was found. Use --device cpu, or install the driver.
GPU-DRIVER: The GPU's driver and this build of torch are incompatible.
GPU-BUSY: The GPU has too little free memory, because other programs use it.
GPU-OLD: This build of torch has no kernels for the GPU, or the GPU is too old for bf16. The message
    says which, and what you can do.
MEM-GPU: The model does not fit into the GPU's memory. Use more --ranks to divide it among more
    GPUs.
MEM-OOM: A process ended because memory ran out. The node restarts a trainer with half as many
    sequences at once. If even one sequence is too much, use --recompute, or --precision bf16 if the
    processor has instructions for it.
MEM-HOST: This machine has too little memory for the run's model. If this is a warning: too little
    memory was free when the node started.
DISK-LOW: The disk is full, or too small for what this node keeps. If this is a warning: the disk
    may soon be full. Nothing that was stored is lost. Make room, and start again.
FD-LIMIT: The limit on open files for this process is too low. Raise it: ulimit -n 4096.
SHM-SMALL: There is too little shared memory. In a container, give it more with --shm-size.
BF16-SLOW: This processor has no instructions for bf16, so torch emulates them. The node takes part,
    but so slowly that the others may continue without it. Leave out --precision to compute in fp32.
INSTALLATION: A package is missing, cannot be loaded, or has a version with which p2ptrain was not
    tested. Run scripts/setup again; it installs the tested versions.
KERNELS: The native kernels are missing, cannot be loaded, or compute a wrong result. Run
    scripts/setup, which compiles them. A wrong result can also mean faulty hardware.
TORCH-BROKEN: The installed torch crashes, hangs, or cannot exchange data on this machine. Most
    likely, it is a build for other hardware, or its files are damaged. Install it again.
DEVICE-WRONG: The device computes wrong products. Do not train on it: its hardware or its driver is
    faulty, or it is overclocked.
CLOCK: A clock of this machine is wrong. Nodes do not compare wall clocks, so training goes on, but
    the times in the journal mislead.
DISK-SLOW: The disk of the home is slow. Voters flush each vote to the disk before they send it, so
    the other peers wait for a slow disk. Choose a local disk with --home.
CHECK-LATE: A check of p2ptrain doctor did not end in time. The machine is overloaded, or a device
    such as a disk does not answer.
NODE-KILLED: The last node in this home ended without writing a reason. It was killed, or the
    machine lost power. Nothing that was stored is lost; start the node again.
OS: The operating system refused an operation. The message quotes its error and the file.
PAGE-NONE: No page is served from this home. A node serves one while it runs, unless it was
    started with --no-page.
PAGE-TOKEN: Other users can read the file with the token of the page, so they could act for you.
    Make the file private with the chmod command in the message.
KERNEL-VARIANT: This processor cannot run the requested variant of the native kernels.

# what is stored
STORE: This node's store has a problem. The message says which.
STORE-PINS: The file `pins` in the store, which lists the blobs to keep, is damaged or too long.
    Write the digests into it again, one on each line, or remove the file.
PINS-BUSY: Another process has been changing the contents of this store for ten seconds. A node that
    removes many chunks at once may take that long. Try again in a minute.
STORE-BUSY: Another process is using this store: a node is running in the same home.
STORE-HEAD: The store's head, the file that names the newest state, is damaged. Move the store away;
    the node fetches a snapshot again.
STORE-IO: The disk that holds the store reported an error.
STORE-READONLY: The store is on a file system that cannot be written to.
SERIES: The history of the run, series.db in the node's home, cannot be read or written. The message
    says why. It is only for display: the run goes on without it. A damaged file is put aside.
CKPT-HASH: A chunk does not match its digest: the disk or a peer altered it. The chunk is not used.
CKPT-MISSING: A chunk is not in the store. A node fetches it from its peers.
CKPT-MANIFEST: The description of a snapshot or of another blob is malformed. The blob is not used.
CKPT-NO-SOURCE: No reachable peer has the missing chunks. Wait for other peers to come back.
FETCH-CANCELLED: Fetching was stopped. Chunks that have arrived are kept.
FETCH-TIMEOUT: Fetching did not finish in time. Chunks that have arrived are kept for the next try.
LEDGER-BROKEN: The ledger on this disk is inconsistent: an entry is missing, altered, or from a
    different run. Move the home away, or give the node a new one; it fetches the ledger again.
TRAINED-OTHERWISE: A node's journal contradicts the ledger: the wrong member trained on a block, or
    the right member trained on it twice or not at all.
LEDGER-PRUNED: All reachable peers have dropped the old ledger entries that this node lacks. Nobody
    is at fault. Start the node when a peer that keeps everything is online. Or get a checkpoint
    from a person whom you trust: p2ptrain node --trust-checkpoint HEIGHT:DIGEST.
LEDGER-CHECKPOINT: No peer has the beginning of the ledger that --trust-checkpoint names, or the
    ledger in this home contradicts it. The checkpoint is misspelt, is from a different run, or was
    dropped by all peers. Ask for a newer one.
STATE-DIFFERS: The weights in this node's memory were not those that the members certified. The node
    replaces them with those of other peers. If this happens again and again, the node stops: test
    this machine's memory and processor.
AUDIT-DIFFERS: The run's updates do not lead to a snapshot that a majority of its voters signed.
    Verify on another machine. If the result is the same, the voters broke the run's rules: ask
    them.
AUDIT-PARTIAL: The replayed part is correct, but this home does not hold the rest. Fetch the rest,
    or verify in a home where everything is kept.
AVERAGE-WRONG: The update of an outer step is not what its participants' contributions make it, so a
    participant lied. Its own signature names it, if it can be named. All nodes still have the same
    weights. p2ptrain verify --average STEP checks more of it. Tell the organiser.
AVERAGE-UNKNOWN: The ledger no longer says how the participants were weighted. Check a newer step.
AVERAGE-PARTIAL: The checked chunks are right, but some contributions could not be fetched.
    Contributions are kept for two outer steps, by their peers only.
CONTRIBUTION-ODD: The work of this node has an odd length or direction, compared with that of the
    others, so they leave it out. The hardware may be defective. The node trains the work anew.
CLAIMS-BROKEN: The file with this node's claims is damaged. Without it, the node might contradict
    claims that it made before, and other members would evict it. Join again as a new peer.
HISTORY-CUT: A seed keeps every update for replays from genesis, until its disk is nearly full. This
    seed lacks some updates: it joined late, its disk is too small, or you told it to keep less. The
    run is not in danger, and replays from a later snapshot work here.
LOG-CLOSED: The node wrote to a log after the log was closed.
LOG-CORRUPT: A log on disk is damaged in the middle. A crash does not cause this: suspect the disk.

# training and exchanges
TRAINER: The trainer processes have a problem. The message says which.
TRAINER-EXITED: A trainer process ended by itself. The message shows its last lines. The node
    restarts it a few times.
TRAINER-UNFIT: A trainer found that it cannot run on this machine, or not with these settings. Its
    last lines say why. A restart would end in the same way, so the node stops.
TRAINER-STALLED: A trainer has not finished an inner step for far longer than usual.
TRAINER-CHANNEL: The connection between the node and a trainer broke: the trainer has ended.
TRAINER-RESTARTS: Trainers ended so often, or so often in a row without finishing inner steps, that
    the node gives up. The journal records how each one ended.
TRAINER-RANKS: A rank that torchrun started for this node is gone, so the node disconnected all
    ranks. The node waits until torchrun has restarted them.
TRAINER-AWAY: Not all ranks that torchrun should have restarted came back in time, so the node
    leaves. Start torchrun on every host, and then the node.
RANKS-LISTEN: The node cannot listen at the address of --ranks-listen.
RANKS-SECRET: The node and the ranks of torchrun must have the same ranks.secret, readable by its
    owner only.
JOIN-FRESH: No member could provide the state of its inner optimizer. This node starts with an empty
    optimizer state. That costs it a warm-up, and nothing else.
NAN: A loss or a weight is not a finite number. Training has diverged, or the hardware is faulty.
    The node did not send the result to the others.
DIVERGED: This node's weights have moved further from the shared weights than the run allows
    (policy.influence_max). Training has diverged, or the hardware is faulty. The node did not send
    them to the others; the trainer restarts from the shared weights.
PAYLOAD-SCALE: A quantised block has an invalid scale. The node rejected the block; the message
    names the sender.
REDUCE-ABORTED: An exchange did not complete, usually because a peer went away. Nothing is lost: the
    members agree to continue without that peer, and try again.
VOTE-LOST: Your seed is a founder of the run. It was stopped, and the members agreed to continue
    without it. Only peers that train become voters in this run, so the seed does not vote any more.
    It still serves the run.
WAITING: Your node has been in the same state for at least twice as long as usual. The message says
    what it waits for, since when, until when, and which peer is the likely cause. Often the members
    wait for another peer: then you need not do anything.
SYNC-SLOW: An exchange takes twice as long as this node's exchanges usually do, or more than a
    minute if the node has just started. The message says since when, for whom the members wait, and
    which peer is the likely cause. If a peer delays the exchange for long, the members continue
    without it.
SYNC-DROPPED: This node was left out of an exchange: it was late, the others did not receive its
    messages, or an attempt with it failed. If the cause of a failure is unclear, members sit out in
    turn, so this node may not be the cause. Its work is kept for the next exchange.

# exported weights
EXPORT-EXISTS: The folder for the export already exists. Choose another; --force replaces an earlier
    export and nothing else.
EXPORT-MODEL: The run's model has a feature that the other program does not support, so its weights
    cannot be exported for that program.
EXPORT-PARITY: The other program computes different results from the exported weights. The export
    was removed. Please report this.
MODEL-FOLDER: The folder does not hold exported weights, or a file is missing. `p2ptrain export --to
    hf DIR` makes such a folder.
MODEL-FOREIGN: The weights are for a model that p2ptrain does not support, or the files do not match
    each other. Only folders written by `p2ptrain export` can be used here.
PROOF-UNCERTIFIED: The folder has no certificate of its weights, so nothing that they generate can
    be proved. Export a snapshot that a ledger entry names; `p2ptrain export` then writes one.
PROOF-SHORT: A proof covers 32 tokens at a time, so shorter texts cannot be proved. Use a longer
    prompt, or let the model generate more.
PROOF-FORMAT: The file is not a proof of a text, or it does not belong to this model. It was damaged
    or altered, or another version of p2ptrain wrote it.
PROOF-CERTIFICATE: The certificate in the proof does not certify anything: a signature is wrong, or
    the ledger that you named has another entry. Do not trust the file.
PROOF-WEIGHTS: The folder that you gave does not contain the weights that the proof names, or its
    files were altered or rounded. Export the named snapshot as fp32. The text was not checked.
PROOF-MODEL: The hidden states of the text differ from the first tokens on. Other weights generated
    it, or the beginning of its prompt was altered. The certified weights did not generate it.
PROOF-PROMPT: The first tokens fit the proof, and a later part of the prompt does not. The prompt
    was altered.
PROOF-TEXT: The prompt fits the proof, and a part of the text after it does not. The text was
    altered.

# commands
BUG: p2ptrain has a fault. Run the command again with -v to see where it happened, and report it.
TRY-LATER: Nothing is wrong, but the command cannot do this now.
NO-NODE: The command asks a running node, and no node is running in this home.
NOT-YET: The node in this home is still starting; `p2ptrain status` shows its progress.
NODE-SILENT: A node in this home does not answer. It is very busy, starting or stopping.
NO-TERMINAL: The screen of `p2ptrain top` needs a terminal whose cursor it can move. In a pipe, or
    with TERM=dumb, use `p2ptrain top --once`, `status` or `events`.
CARD: A contribution card does not verify: its signature is wrong, its picture does not show the
    signed facts, or the ledger here disagrees. The message says which. Ask for a new one.
TRACK-PACKAGE: A package is missing. `p2ptrain track --to tensorboard` needs tensorboardX, and
    `--to wandb` and `--to aim` need the package of that name. Install it, or use `--to jsonl`,
    which needs nothing.
CODE-UNKNOWN: This error code does not exist. `p2ptrain explain` without a code lists all codes.
"""
"""The codes by subject. A line that is indented continues the line above it."""


def _parse(text: str) -> dict[str, str]:
    paragraphs = re.split(r"\n+(?=\S)", text.strip())
    entries = [each.partition(": ") for each in paragraphs if not each.startswith("#")]
    return {code: " ".join(words.split()) for code, _, words in entries}


CODES = _parse(_TEXT)
