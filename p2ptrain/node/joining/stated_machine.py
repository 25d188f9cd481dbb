"""A node describes its machine in two words when it asks to join; only known words are accepted.

A node that is not admitted yet does not know how members reach it, since only members answer that
question. So it says which kind of address it has. Both words are its own, and nobody checks them.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from enum import StrEnum
from ipaddress import ip_address

from p2ptrain.config.node import NodeConfig
from p2ptrain.node.gossip.own_addresses import OwnAddresses
from p2ptrain.peers.series.step_report import DEVICES
from p2ptrain.trainer.host import gpus

NO_TRAINER = "none"
"""The device of a node that does not train."""


class StatedReach(StrEnum):
    """The kind of address of a node."""

    ANNOUNCED = "announced"
    """Its user has named an address for other peers."""
    PUBLIC = "public"
    """Its machine has a public address."""
    PRIVATE = "private"
    """Its machine has private addresses only, so it is probably behind a router."""
    OUTBOUND = "outbound"
    """It does not listen."""


def stated_device(config: NodeConfig) -> str:
    """Return the class of the device on which this node will train; "" if torchrun decides that."""
    if config.seed:
        return NO_TRAINER
    if config.ranks_host:
        return ""
    if config.device != "auto":
        return config.device
    return "cuda" if gpus.has_nvidia_gpu(gpus.DEVICES, os.environ) else "cpu"


def stated_reach(config: NodeConfig, listening: Collection[str], own: OwnAddresses) -> StatedReach:
    """Return the kind of address of this node, which listens at `listening`."""
    if not listening:
        return StatedReach.OUTBOUND
    if config.announce:
        return StatedReach.ANNOUNCED
    hosts = (*own.hosts, own.lan_host)
    is_public = any(ip_address(each).is_global for each in hosts if each)
    return StatedReach.PUBLIC if is_public else StatedReach.PRIVATE


def known_device(word: str) -> str:
    """Return `word` if it is the class of a device, and otherwise "other"."""
    return word if word in (*DEVICES, NO_TRAINER) else "other"


def known_reach(word: str) -> str:
    """Return `word` if this version knows it, and otherwise ""."""
    return word if word in set(StatedReach) else ""
