"""The error for an address that could not be reached: one code per cause.

Each code comes with its likely cause and advice. The function that observed the failure adds what
happened.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2ptrain.errors import ConfigError, NetworkUnreachable, P2PTrainError, counted
from p2ptrain.net.addresses import Address
from p2ptrain.net.scopes import AddressScope, scope_of

_ADVICE: dict[str, tuple[str, str]] = {
    "NET-DNS": (
        "the host name is misspelt or no longer exists, or DNS does not work on this machine",
        "check the address and this machine's connection",
    ),
    "NET-REFUSED": (
        "the peer is down; your machine is not at fault",
        "wait and try again, or ask for a new address",
    ),
    "NET-TIMEOUT": (
        "the peer's machine is off, or a firewall drops packets to this port",
        "wait and try again, or ask for a new address",
    ),
    "NET-NO-ROUTE": (
        "this machine is offline, or it has no IPv6",
        "check this machine's connection",
    ),
    "NET-SILENT": (
        "a program listens there but does not answer: the peer is overloaded, or it is "
        "a different program",
        "wait and try again; check the port in the address",
    ),
    "NET-NOT-LIBP2P": (
        "a different program uses the port in the address",
        "check the port in the address",
    ),
    "NET-RESET": (
        "a firewall or the peer itself cut the connection off",
        "wait and try again; if it happens again, ask the peer's owner",
    ),
    "NET-WRONG-ID": (
        "the address is outdated: another peer, or the same peer with a new identity, now uses it",
        "ask for a new address",
    ),
}


_NEAR: dict[AddressScope, str] = {
    AddressScope.LOOPBACK: "the address refers to this machine itself, and the peer does not run "
    "here",
    AddressScope.PRIVATE: "the address works only inside one private network, and the peer may be "
    "in another, or down",
    AddressScope.SHARED: "the address works only inside one provider's network, and the peer may "
    "be in another, or down",
}
"""These texts replace the usual explanation when nobody answers at an address of such a scope. From
this machine, the address may lead to a different machine, so the peer may be up nevertheless."""

_NOBODY_THERE = ("NET-REFUSED", "NET-TIMEOUT", "NET-NO-ROUTE")


class DialFailed(NetworkUnreachable):
    """One address could not be reached. `words` says in a phrase what happened."""

    def __init__(self, address: Address, code: str, words: str) -> None:
        likely, do = _advice(address, code)
        super().__init__(
            f"{address} could not be reached: {words}",
            code=code,
            evidence=[attempt(str(address), words)],
            likely=likely,
            do=do,
        )
        self.words = words
        self.is_near = scope_of(address) in _NEAR


def _advice(address: Address, code: str) -> tuple[str, str]:
    """Return the likely cause of an error with this code, and the advice for the user."""
    scope = scope_of(address)
    if scope in _NEAR and code in _NOBODY_THERE:
        ask = "if you are elsewhere, ask for an address that can be dialled from there"
        return _NEAR[scope], (
            f"{ask} (p2ptrain explain {scope.code}); otherwise check that the peer is running"
        )
    return _ADVICE[code]


def attempt(address: str, words: str) -> str:
    """Return one line of evidence: the address that was tried, and what happened."""
    return f"tried   {address}   {words}"


def none_answered(failures: Sequence[tuple[str, P2PTrainError]], untried: int = 0) -> P2PTrainError:
    """Return one error for all addresses tried. Its code is that of the attempt that got furthest;
    attempts at publicly dialable addresses take precedence. `untried` counts addresses for which
    there was no time."""
    if len(failures) == 1 and not untried:
        return failures[0][1]
    dialled = [failure for _, failure in failures if isinstance(failure, DialFailed)]
    best = max(dialled, key=_how_far) if dialled else failures[0][1]
    ours = all(isinstance(error, ConfigError) for _, error in failures)
    summary = ConfigError if ours else NetworkUnreachable
    more = counted(untried, "more address was", "more addresses were")
    rest = [f"{more} not tried, because time ran out"] if untried else []
    return summary(
        "the only address tried did not answer"
        if len(failures) == 1
        else f"none of the {len(failures)} addresses answered",
        code=best.code,
        evidence=[
            attempt(text, error.words if isinstance(error, DialFailed) else error.what)
            for text, error in failures
        ]
        + rest,
        likely=best.likely,
        do=best.do,
    )


def _how_far(failure: DialFailed) -> tuple[bool, int]:
    return not failure.is_near, list(_ADVICE).index(failure.code)
