"""Fetch chunks from many peers at once: choose sources, transfer the chunks and verify them."""

from p2ptrain.swarm.chunk_cache import HotChunks
from p2ptrain.swarm.fetch import FetchHandle, fetch_blob, fetch_chunks
from p2ptrain.swarm.kept_connections import KeptConnections
from p2ptrain.swarm.named_chunks import NamedChunks
from p2ptrain.swarm.one_source import OneSource
from p2ptrain.swarm.picker import Picker
from p2ptrain.swarm.report import DropReason, FetchProgress, FetchReport
from p2ptrain.swarm.server import ChunkServer, ChunkSource
from p2ptrain.swarm.wire import PURPOSE

__all__ = [
    "PURPOSE",
    "ChunkServer",
    "ChunkSource",
    "DropReason",
    "FetchHandle",
    "FetchProgress",
    "FetchReport",
    "HotChunks",
    "KeptConnections",
    "NamedChunks",
    "OneSource",
    "Picker",
    "fetch_blob",
    "fetch_chunks",
]
