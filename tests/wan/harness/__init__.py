"""The emulator of a wide-area network with NATs, and the programs that measure on it.

    python -m tests.wan.harness -n 3 -d 20 -N cone:1 -N sym:2 -- COMMAND

`emulator` compiles the C sources in tests/wan and runs a command on the emulated nodes. `punch_end`
is the program of one end of punched connections, and `punching` measures pairs of such ends.
`votes` measures voters that cannot connect to each other, `verdicts` measures what nodes say about
how others reach them, `doctor_lines` checks what the doctor says there, and `joining` measures how
fast a newcomer fetches the weights. `voter` is the program of a node in all of these.

The emulator needs Linux, root, a C compiler, iproute2 and /dev/net/tun. CI has no root. So the
tests in tests/wan check the NATs without the emulator, and everything else is a command.
"""
