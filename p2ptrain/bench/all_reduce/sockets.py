"""One peer of a ring of plain TCP connections. Arguments: ME PEERS ELEMENTS REPEATS HOST FOLDER.

This measures the network paths alone. Each peer sends its successor as many bytes as an ideal
8-bit all-reduce would. It uses many connections. Each connection takes the next piece as soon as it
can send.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path

from p2ptrain.bench.meeting import all_have, await_files, post
from p2ptrain.dataplane.tls import tune

CONNECTIONS = 16
PIECE_BYTES = 1 << 16
MEET_S = 120.0


class ByteCounts:
    """Counts the bytes still to send to one neighbour and those received from the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._to_send = 0
        self._received = 0

    def send(self, sock: socket.socket) -> None:
        piece = bytes(PIECE_BYTES)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._to_send > 0)
                count = min(PIECE_BYTES, self._to_send)
                self._to_send -= count
            sock.sendall(piece[:count])

    def receive(self, sock: socket.socket) -> None:
        buffer = bytearray(4 * PIECE_BYTES)
        while count := sock.recv_into(buffer):
            with self._changed:
                self._received += count
                self._changed.notify_all()

    def exchange(self, count: int) -> None:
        """Send `count` bytes, and wait until `count` bytes have arrived."""
        with self._changed:
            self._to_send += count
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._received >= count)
            self._received -= count


def main(me: str, peers: str, elements: str, repeats: str, host: str, folder: str) -> None:
    number, count, meeting = int(me), int(peers), Path(folder)
    flow = ByteCounts()
    with socket.create_server((host, 0), backlog=CONNECTIONS) as listener:
        post(meeting / f"{number}.address", json.dumps(listener.getsockname()))
        successor = meeting / f"{(number + 1) % count}.address"
        await_files([successor], MEET_S)
        host_of_next, port = json.loads(successor.read_text())
        for _ in range(CONNECTIONS):
            out = socket.create_connection((host_of_next, port))
            tune(out)
            threading.Thread(target=flow.send, args=(out,), daemon=True).start()
        for _ in range(CONNECTIONS):
            into, _ = listener.accept()
            threading.Thread(target=flow.receive, args=(into,), daemon=True).start()
    seconds = []
    for repeat in range(int(repeats)):
        all_have(meeting, number, count, f"begun-{repeat}", MEET_S)
        begun = time.monotonic()
        flow.exchange(2 * (count - 1) * int(elements) // count)
        seconds.append(time.monotonic() - begun)
    all_have(meeting, number, count, "ended", MEET_S)
    sys.stdout.write(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
