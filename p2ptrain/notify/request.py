"""`python -m p2ptrain.notify.request`: send one HTTP request, which standard input describes.

The name of a host, TLS and an answer can each hang or break in their own ways. In a process of its
own, one deadline covers them all: whoever started the process kills it. It writes the status to
standard output, or why there is none. It follows no redirect and does not read the answer's body.
"""

from __future__ import annotations

import http.client
import json
import resource
import sys
from typing import Any
from urllib.parse import urlsplit

SOCKET_S = 10.0
MEMORY_BYTES_MAX = 256 * 2**20


def main() -> int:
    """Send the request, and return 0 if there is an answer."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    order = json.loads(sys.stdin.buffer.read())
    try:
        status = _status(order)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        sys.stdout.write(str(getattr(exc, "strerror", "") or exc) or type(exc).__name__)
        return 1
    sys.stdout.write(str(status))
    return 0


def _status(order: dict[str, Any]) -> int:
    parts = urlsplit(order["url"])
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=SOCKET_S)
    query = f"?{parts.query}" if parts.query else ""
    try:
        connection.request(
            "POST", f"{parts.path or '/'}{query}", order["body"].encode(), order["headers"]
        )
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
