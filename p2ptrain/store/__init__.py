"""Chunks, blobs, the head and append-only logs on disk, safe against a crash at any write."""

from p2ptrain.store.blob import (
    CHUNK_BYTES,
    CHUNK_BYTES_MAX,
    BlobManifest,
    BlobReader,
    CheckedChunk,
    checked,
    describe,
    digest_of,
)
from p2ptrain.store.disk import Disk, LocalDisk, OpenFile
from p2ptrain.store.garbage import Collected, RootsDamaged
from p2ptrain.store.head import Head
from p2ptrain.store.idle_throttle import IdleThrottle
from p2ptrain.store.memory_disk import MemoryDisk, PowerCut
from p2ptrain.store.objects import ChunkHealth
from p2ptrain.store.pins import Pins
from p2ptrain.store.reader import StoreReader
from p2ptrain.store.record_log import LogCorrupt, RecordLog
from p2ptrain.store.store import Store
from p2ptrain.store.survey import Survey, Usage

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_BYTES_MAX",
    "BlobManifest",
    "BlobReader",
    "CheckedChunk",
    "ChunkHealth",
    "Collected",
    "Disk",
    "Head",
    "IdleThrottle",
    "LocalDisk",
    "LogCorrupt",
    "MemoryDisk",
    "OpenFile",
    "Pins",
    "PowerCut",
    "RecordLog",
    "RootsDamaged",
    "Store",
    "StoreReader",
    "Survey",
    "Usage",
    "checked",
    "describe",
    "digest_of",
]
