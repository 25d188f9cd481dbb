"""Send one message to one target, within a deadline. This module does not decide what to send."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from p2ptrain.notify.messages import SIGNATURE, Message, body_of, inert, signature_of
from p2ptrain.notify.targets import Target

DEADLINE_S = 10.0
FAULT_CHARACTERS_MAX = 200
NTFY = "https://ntfy.sh"
REQUEST = (sys.executable, "-m", "p2ptrain.notify.request")


def send(
    target: Target, message: Message, *, machine: str, run: str, deadline_s: float = DEADLINE_S
) -> str:
    """Send the message, and return "" or why that failed. Never takes longer than `deadline_s`."""
    text = f"{machine}: {message.line}"
    if target.kind == "cmd":
        _, fault = _run((target.to.partition(":")[2],), f"{text}\n".encode(), deadline_s)
        return fault
    if target.kind == "ntfy":
        url, body = f"{NTFY}/{target.to.partition(':')[2]}", text.encode()
        headers = {"Title": f"p2ptrain: {message.cause}", "Content-Type": "text/plain"}
        return _post(url, body, headers, deadline_s)
    body = body_of(message, machine=machine, run=run)
    headers = {"Content-Type": "application/json", "User-Agent": "p2ptrain"}
    if target.secret:
        headers[SIGNATURE] = signature_of(body, target.secret)
    return _post(target.to, body, headers, deadline_s)


def _post(url: str, body: bytes, headers: Mapping[str, str], deadline_s: float) -> str:
    order = {"url": url, "body": body.decode(), "headers": headers}
    # The order goes through standard input: other users can read the words of a command.
    said, fault = _run(REQUEST, json.dumps(order).encode(), deadline_s, to_hear=True)
    if fault:
        return said or fault
    if said.isdigit() and 200 <= int(said) < 300:
        return ""
    if said.isdigit() and 300 <= int(said) < 400:
        return f"the server answers with status {said}, a redirect; give the URL where it leads"
    return f"the server answers with status {said}"


def _run(
    words: Sequence[str], given: bytes, deadline_s: float, *, to_hear: bool = False
) -> tuple[str, str]:
    """Run a program without a shell. Return its output if it `is to_hear`, and "" or why it failed.
    Kill it, with its descendants in the same session, at the deadline."""
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if to_hear else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=None if to_hear else "/",
            start_new_session=True,
        )
    except OSError as exc:
        return "", f"it cannot be started: {exc.strerror or exc}"
    with process:
        try:
            heard, _ = process.communicate(given, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return "", f"no answer within {deadline_s:g} s"
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    said = inert((heard or b"").decode(errors="replace"))[:FAULT_CHARACTERS_MAX]
    return said, f"it ended with status {process.returncode}" if process.returncode else ""
