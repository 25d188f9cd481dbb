"""Every error code in words, for `p2ptrain explain CODE`.

A test walks the sources and fails for a code without an entry, so every code can be explained. Each
entry says what the code means, whose fault it likely is, and what helps.
"""

from __future__ import annotations

from p2ptrain.cli.network_codes import ADDRESSES, NETWORK

PEERS = {
    "PEER": "Something went wrong with one other peer. The others are not concerned.",
    "PEER-UNREACHABLE": "One peer cannot be reached at present.",
    "PEER-LOST": "The connection to a peer broke. It may have stopped, or the network did.",
    "PEER-TOO-SLOW": (
        "A peer did not answer in time. It is dropped for this task and may try again later."
    ),
    "PEER-REFUSED": (
        "A peer refused a request, for instance because we are not on its allowlist yet."
    ),
    "PEER-FAILED": "A peer said that it could not carry out a request.",
    "PEER-PROTOCOL": (
        "A peer sent what the protocol does not allow. It is dropped. A node with another "
        "version, a fault, or malice: this node is not harmed by any of them."
    ),
    "PEER-ID": (
        "A text is not a peer id. A peer id begins with 12D3KooW and has 52 characters; `p2ptrain"
        " id` prints this node's own."
    ),
}

RUNS = {
    "USAGE": "The command was called with what it does not have. Add --help to see what it has.",
    "CONFIG": "A setting is wrong. The message names it, its value, and what it should be.",
    "HOME": (
        "The folder that was given as the home cannot be one: it is a file, another user's, or on "
        "a disk that cannot be written to. Choose another with --home."
    ),
    "HOME-UNSAFE": (
        "Another user of this machine could write in the home, or a file in it is a symbolic link. "
        "A node that trusts such files could be made to break its promises, or to overwrite files "
        "elsewhere, so it does not start. The message prints the command that repairs the home."
    ),
    "RUN-FILE": (
        "A document of the run in the home is damaged or belongs to another run. Move it away; a "
        "node fetches it again."
    ),
    "RUN-NONE": "The command needs a run in this home and there is none.",
    "RUN-EXISTS": "This home holds a run already, and a second one would overwrite its documents.",
    "CONSENT": (
        "A node asks its user before it takes part in a run for the first time. Nobody was there "
        "to ask, or the answer was no. --yes agrees beforehand."
    ),
    "RUN-MISMATCH": (
        "The peer serves another run than the one that was asked for, or than this home holds. "
        "Compare the two run ids. Each run needs a home of its own: --home DIR."
    ),
    "RUN-VERSION": "The run was made for another version of p2ptrain than this one.",
    "RUN-ENDED": "The run has made all its outer steps; there is nothing left to train.",
    "SIGNATURE": (
        "A document's signature is wrong: it was altered on the way, or is a forgery. It was not "
        "used."
    ),
    "ALLOWLIST-SIGNER": "An allowlist is not signed by the run's organiser. It was not used.",
    "ALLOW-UNHEARD": (
        "An allowlist's number is used once, and nobody could be asked whether there is a newer "
        "list than in this home. Nothing was signed. --anyway says that there is none."
    ),
    "ALLOW-QUORUM": (
        "Who is taken off the allowlist is not heard any more, and votes until the next roster. "
        "Too few would be left to agree on one. Nothing was signed; take off fewer at once."
    ),
    "AMEND-SIGNER": "An amendment is not signed by the run's organiser. It was not used.",
    "AMEND-LATE": (
        "An amendment holds from an outer step that has begun, or begins before members can agree. "
        "Choose a later one."
    ),
    "AMEND-ORDER": "An amendment holds from a later outer step than all amendments before it.",
    "AMEND-VALUE": (
        "A run cannot go on with the values of this amendment, or they are what it has already. "
        "The message says which."
    ),
    "AMEND-FAR": (
        "An amendment makes a learning rate more than ten times larger or smaller, or is for an "
        "outer step more than a hundred ahead, which is a slip more often than not. Nothing was "
        "signed; --far says that it is meant."
    ),
    "AMEND-DIFFERS": (
        "The run's ledger names an amendment and says of it what the organiser did not sign. "
        "Show this to the organiser."
    ),
    "INFLUENCE-BROKEN": (
        "The run's voters certified an update that moves a weight further than the manifest "
        "allows. Most of them lie, or run another program. This node applies no such update, so "
        "it stops. Do not start it again for this run; show the entry to the organiser."
    ),
    "AMEND-MISSING": (
        "Members have agreed on an amendment that this node has not got yet. It asks all of them "
        "for it, and waits before the outer step from which it holds. An organiser's home that "
        "lacks it signs no other before."
    ),
    "BRANCH": (
        "The run has lost a majority of its voters and goes on on a branch, or is about to. If the "
        "others come back with a chain that outranks it, what the branch has made is dropped."
    ),
    "NOT-ENCRYPTED": (
        "The run's manifest says that bulk data travels in the clear: whoever is on the path can "
        "read and change it. Only for networks where everybody is trusted."
    ),
    "DATA": "A data block is damaged or was not made for this run. It is fetched again.",
    "DATA-SOURCE": (
        "The text or reads to train on cannot be read, are broken at the line that is named, or "
        "there are none."
    ),
    "EXTRA-MISSING": (
        "What was asked for needs a package that p2ptrain does not bring along by itself. Install "
        "it with the command that is shown."
    ),
}

AUTHORITY = {
    "AUTH-PENDING": (
        "This node is not on the run's allowlist yet. It has asked to be let in, which the "
        "organiser does with: p2ptrain allow add PEERID (p2ptrain id prints it). The node can wait "
        "for that and goes on by itself."
    ),
    "AUTH-DENIED": (
        "This node is not on the run's allowlist, or may not do what it tried. The organiser "
        "decides who takes part: p2ptrain allow add PEERID."
    ),
    "AUTH-REVOKED": (
        "This node was on the run's allowlist and has been taken off it by the organiser."
    ),
    "AUTH-ORGANISER": (
        "Only whoever holds the organiser's key can amend a run or change its allowlist. It is in "
        "the home that the run was published from."
    ),
    "ID-IN-USE": (
        "A node with this identity runs already. Two of them would vote twice: give each node a "
        "--home of its own, and never copy an identity.key."
    ),
    "VOTER-LIED": (
        "A voter has signed two things that exclude each other, which is proof against it. It is "
        "evicted, and the proof kept: p2ptrain ledger evidence shows it."
    ),
    "ID-MODE": (
        "The identity key could be read by other users of this machine. Make it private: chmod 600."
    ),
    "ID-BROKEN": (
        "The identity key is not a key: damaged, or another file. Restore it, or move it away to "
        "start as a new peer."
    ),
}

MACHINE = {
    "MACHINE-UNFIT": "This machine cannot take part; the message says what it lacks.",
    "GPU-NONE": "A GPU was asked for and none was found. Use --device cpu, or install the driver.",
    "GPU-DRIVER": "The GPU's driver and this build of torch do not fit together.",
    "GPU-BUSY": "The GPU has too little free memory because other programs use it.",
    "GPU-OLD": (
        "The GPU is older than those that this build of torch was built for, or newer, and there "
        "are no kernels for it; or it is too old for bf16. The message says which, and what helps."
    ),
    "MEM-GPU": "The model does not fit into the GPU's memory. More --ranks share it out.",
    "MEM-OOM": (
        "A process ended because memory ran out. A trainer is started again with half as many "
        "sequences at once; if one is too much, try --recompute, or --precision bf16 where the "
        "processor has instructions for it."
    ),
    "MEM-HOST": (
        "This machine has too little memory for the run's model; as a warning: too little was free "
        "when the node started."
    ),
    "DISK-LOW": (
        "The disk is full, or too small for what this node would keep; as a warning: it soon may "
        "be. Nothing that was stored is lost. Make room, and start again."
    ),
    "FD-LIMIT": "Too few open files are allowed for this process: ulimit -n 4096.",
    "SHM-SMALL": "Too little shared memory: in a container, give it more with --shm-size.",
    "BF16-SLOW": (
        "This processor has no instructions for bf16, so torch multiplies number by number. The "
        "node takes part, but so slowly that others may go on without it. Leave out --precision, "
        "and it computes in fp32."
    ),
    "OS": (
        "The system refused something; the message has its words, and the file that it is about."
    ),
    "NO-COMPILER": (
        "A C compiler or mypyc is missing, or failed: simulate --interpreted does without, at half"
        " the pace."
    ),
    "KERNEL-VARIANT": (
        "A variant of the native kernels was asked for that this processor cannot run."
    ),
}

STORES = {
    "STORE": "The store of this node has a problem; the message says which.",
    "STORE-PINS": (
        "The file `pins` in the store, which lists what its owner wants kept, is damaged or too "
        "long. Write the digests into it again, one a line, or remove it."
    ),
    "PINS-BUSY": (
        "What a store keeps is being changed by another process, for ten seconds by now. A node "
        "that removes much at once may take so long: try again in a minute."
    ),
    "STORE-BUSY": "Another process uses this store: a node runs in the same home.",
    "STORE-HEAD": (
        "The store's head is damaged. Move the store away; the node fetches a snapshot again."
    ),
    "STORE-IO": "The disk under the store reported an error.",
    "STORE-READONLY": "The store lies on a file system that cannot be written to.",
    "CKPT-HASH": (
        "A chunk is not what its name says: the disk or a peer altered it. It was not used."
    ),
    "CKPT-MISSING": "A chunk is not in the store. A node fetches it from its peers.",
    "CKPT-MANIFEST": (
        "The description of a snapshot or another blob is malformed. It was not used."
    ),
    "CKPT-NO-SOURCE": (
        "No peer that can be reached has what is to be fetched. Wait for others to come back."
    ),
    "FETCH-CANCELLED": "Fetching was stopped. What has been fetched is kept.",
    "FETCH-TIMEOUT": (
        "Fetching took longer than it may. What has been fetched is kept for the next try."
    ),
    "LEDGER-BROKEN": (
        "The ledger on this disk does not fit together: an entry is missing, altered, or of "
        "another run. Move the home away, or give the node a new one; it fetches the ledger again."
    ),
    "TRAINED-OTHERWISE": (
        "What a trainer logged is not what the ledger credits its node with: a block was trained "
        "twice, by somebody else, or not at all."
    ),
    "LEDGER-PRUNED": (
        "Everybody that can be reached has forgotten the old entries of the ledger that this node "
        "lacks; it is nobody's fault. Start it when somebody who keeps everything is there, or "
        "believe a checkpoint that a person whom you trust tells you: p2ptrain node "
        "--trust-checkpoint HEIGHT:DIGEST."
    ),
    "LEDGER-CHECKPOINT": (
        "Nobody gave the beginning of the ledger that --trust-checkpoint names, or the ledger here "
        "contradicts it. It is misspelt, of another run, or forgotten by all: ask for a newer one."
    ),
    "STATE-DIFFERS": (
        "The weights in this node's memory were not what the members certified. They are put right "
        "from the others. If that happens again and again the node ends: test this machine's "
        "memory and processor."
    ),
    "AUDIT-DIFFERS": (
        "The updates of the run do not lead to a snapshot that a majority of its voters signed. "
        "Verify on another machine; if it finds the same, the run's history is not what its rules "
        "say, and its voters should be asked."
    ),
    "AUDIT-PARTIAL": (
        "What was replayed is good, but this home does not hold all that the rest takes. Fetch it, "
        "or verify where everything is kept."
    ),
    "HISTORY-CUT": (
        "A seed keeps every update for replays from genesis, until its disk is nearly full. This "
        "one lacks some: it joined late, its disk is too small, or it was told to keep less. The "
        "run is in no danger, and replays from a later snapshot are possible here."
    ),
    "LOG-CLOSED": "A log of this node was written to after it was closed.",
    "LOG-CORRUPT": (
        "A log on disk is damaged in the middle. That is not what a crash does: suspect the disk."
    ),
}

TRAINING = {
    "TRAINER": "The trainer processes have a problem; the message says which.",
    "TRAINER-EXITED": (
        "A trainer process ended by itself. The last lines that it wrote are shown. The node "
        "starts it again a few times."
    ),
    "TRAINER-UNFIT": (
        "A trainer has found that it cannot run on this machine, or not with these settings; its "
        "last lines say why. Another start would end the same way, so the node ends."
    ),
    "TRAINER-STALLED": "A trainer has not made an inner step for far longer than usual.",
    "TRAINER-CHANNEL": "The connection between node and trainer broke: the trainer has ended.",
    "TRAINER-RESTARTS": (
        "Trainers have ended so often, or so many in a row without finishing inner steps, that "
        "the node gives up. The journal has each one's end."
    ),
    "TRAINER-RANKS": (
        "A rank that torchrun started for this node has gone, so all of them were let go. The node "
        "waits until torchrun has started them again."
    ),
    "TRAINER-AWAY": (
        "The ranks that torchrun was to start again did not all come back in time, so the node "
        "leaves. Start torchrun on every host, and then the node."
    ),
    "RANKS-LISTEN": "The address of --ranks-listen cannot be listened at.",
    "RANKS-SECRET": (
        "Node and ranks of torchrun must have the same ranks.secret, which only its owner can read."
    ),
    "JOIN-FRESH": (
        "No member's inner optimizer could be had to begin with. This node starts with an empty "
        "one, which costs it a warm-up and harms nobody."
    ),
    "NAN": (
        "A loss or a weight is not a finite number. Training has diverged, or the hardware errs; "
        "nothing of it was sent to the others."
    ),
    "DIVERGED": (
        "This node's weights have moved further from the shared ones than the run lets any "
        "participant move them (policy.influence_max): training has diverged, or the hardware errs."
        " Nothing of it was sent to the others; the trainer starts again from the shared weights."
    ),
    "PAYLOAD-SCALE": (
        "A quantised block came with an impossible scale. It was refused, and its sender named."
    ),
    "REDUCE-ABORTED": (
        "An exchange did not complete, usually because a peer went away. Nothing is lost: the "
        "members agree on whom to go on without, and try again."
    ),
    "SYNC-SLOW": (
        "An exchange lasts twice as long as this node's exchanges usually do: its own connection "
        "or another member's is slower than before. Members go on without who holds them up."
    ),
    "SYNC-DROPPED": (
        "This node was left out of an exchange: it was late, had not been heard, or an attempt "
        "with it failed. Its work is kept for the next."
    ),
}

WEIGHTS = {
    "EXPORT-EXISTS": (
        "There is something already where the export was to go. Choose another folder; --force "
        "replaces an earlier export, and nothing else."
    ),
    "EXPORT-MODEL": (
        "The run's model has a part that the other program's model does not have, so its weights "
        "cannot be written for it."
    ),
    "EXPORT-PARITY": (
        "The other program does not compute from the exported weights what p2ptrain does. Nothing "
        "was left behind. Report it."
    ),
    "MODEL-FOLDER": (
        "The folder is not one of exported weights, or a file of it is missing. "
        "`p2ptrain export --to hf DIR` makes one."
    ),
    "MODEL-FOREIGN": (
        "The weights are of another kind of model than p2ptrain's, or their files do not fit "
        "together. Only what `p2ptrain export` wrote can be run here."
    ),
}

COMMANDS = {
    "BUG": (
        "p2ptrain did something that it should not. Run it again with -v to see where, and report"
        " it."
    ),
    "TRY-LATER": "Nothing is wrong, but it cannot be done just now.",
    "NO-NODE": "The command asks a running node, and none runs in this home.",
    "NOT-YET": "The node here is still starting; `p2ptrain status` says how far it is.",
    "NODE-SILENT": (
        "A node runs in this home but does not answer: it is very busy, or just starts or ends."
    ),
    "CODE-UNKNOWN": "There is no such code. `p2ptrain explain` without a code lists all of them.",
}

CODES: dict[str, str] = (
    ADDRESSES
    | NETWORK
    | PEERS
    | RUNS
    | AUTHORITY
    | MACHINE
    | STORES
    | TRAINING
    | WEIGHTS
    | COMMANDS
)
