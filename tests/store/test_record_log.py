"""The log keeps every record that was appended durably, or reports the loss when it is opened."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError, StoreError, StoreFull
from p2ptrain.store import MemoryDisk, PowerCut, RecordLog
from tests.process_limits import no_more_descriptors

PATH = Path("/home/votes.log")


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def test_records_are_read_in_order_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "chain.log"
    log = RecordLog(path)
    log.append([b"one", b"", b"two"])
    log.append([b"three" * 1000])
    assert list(log) == [b"one", b"", b"two", b"three" * 1000]
    again = RecordLog(path)
    assert list(again) == list(log)
    assert again.recovered == ""
    again.append([b"four"])
    assert list(RecordLog(path))[-1] == b"four"


def test_empty_append_is_not_a_record(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    log.append([])
    assert list(RecordLog(PATH, disk=disk)) == []


@settings(max_examples=60)
@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), max_size=6))
def test_records_of_any_content_can_be_read_back(batches: list[list[bytes]]) -> None:
    disk = MemoryDisk()
    log = RecordLog(PATH, disk=disk)
    for batch in batches:
        log.append(batch, durable=False)
    expected = [record for batch in batches for record in batch]
    assert list(log) == list(RecordLog(PATH, disk=disk)) == expected


def test_tail_torn_at_any_byte_is_cut_off_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "chain.log"
    log = RecordLog(path)
    log.append([b"first", b"second"])
    sound = path.stat().st_size
    log.append([b"third"])
    whole = path.read_bytes()
    for size in range(sound, len(whole)):
        path.write_bytes(whole[:size])
        torn = RecordLog(path)
        assert list(torn) == [b"first", b"second"]
        assert bool(torn.recovered) == (size > sound)
        torn.append([b"next"])
        assert list(RecordLog(path)) == [b"first", b"second", b"next"]


def test_damage_before_the_last_append_is_reported_as_an_error(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    for number in range(3):
        log.append([b"record %d" % number])
    whole = disk.read(PATH, 0, 9999)
    last = len(whole) - 20 - 4 - len(b"record 2")
    for position in range(last):

        def flip(data: bytes, position: int = position) -> bytes:
            return data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]

        disk.damage(PATH, flip)
        with pytest.raises(StoreError) as caught:
            RecordLog(PATH, disk=disk)
        assert caught.value.code == "LOG-CORRUPT"
        disk.damage(PATH, lambda _: whole)
    assert len(list(RecordLog(PATH, disk=disk))) == 3


@pytest.mark.parametrize("content", [b"", b"p2plog1", b"something else altogether"])
def test_file_that_is_not_a_log_is_not_mistaken_for_an_empty_one(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        RecordLog(tmp_path / "log")
    assert caught.value.code == "LOG-CORRUPT"
    assert (tmp_path / "log").read_bytes() == content


def test_frame_inside_a_record_is_not_read_as_a_frame_of_the_log(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    log.append([b"real"])
    other = MemoryDisk()
    RecordLog(PATH, disk=other).append([b"x"] * 3)
    RecordLog(PATH, disk=other).append([b"forged"])
    frame_of_another_log = other.read(PATH, 20, 9999)
    log.append([frame_of_another_log])
    disk.damage(PATH, lambda data: data[:-1])
    assert list(RecordLog(PATH, disk=disk)) == [b"real"]


def test_record_that_is_too_long_raises_local_protocol_error(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    with pytest.raises(LocalProtocolError):
        log.append([bytes(2**24)])
    assert list(log) == []


def test_rewriting_replaces_all_records(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    log.append([b"a", b"b", b"c"])
    log.rewrite([b"c"])
    log.append([b"d"])
    assert list(log) == list(RecordLog(PATH, disk=disk)) == [b"c", b"d"]


def test_damage_in_a_rewritten_long_log_is_not_taken_for_a_torn_tail(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    records = [b"%d" % number * (1 + number % 15) for number in range(20)]
    log.rewrite(iter(records), frame_bytes=10)
    assert list(RecordLog(PATH, disk=disk)) == records
    log.rewrite([])
    assert list(RecordLog(PATH, disk=disk)) == []
    log.rewrite(records, frame_bytes=10)
    disk.damage(PATH, lambda data: data[:60] + b"?" + data[61:])
    with pytest.raises(StoreError) as caught:
        RecordLog(PATH, disk=disk)
    assert caught.value.code == "LOG-CORRUPT"


def test_full_disk_leaves_the_log_unchanged_and_usable(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    log.append([b"before"])
    for failing in ("append", "sync"):
        disk.fail_at = len(disk.writes) + (1 if failing == "append" else 2)
        disk.failure = errno.ENOSPC
        with pytest.raises(StoreFull):
            log.append([b"lost"])
        assert list(log) == list(RecordLog(PATH, disk=disk))
    log.append([b"after"])
    assert list(RecordLog(PATH, disk=disk)) == [b"before", b"after"]


@pytest.mark.parametrize("seed", range(8))
def test_records_before_a_failed_append_survive_a_power_cut(disk: MemoryDisk, seed: int) -> None:
    """After a failed append, the log is cut back to its old length. Older records are then synced
    too, since later frames rely on them.
    """
    log = RecordLog(PATH, disk=disk)
    log.append([b"not synced yet"], durable=False)
    disk.fail_at, disk.failure = len(disk.writes) + 1, errno.ENOSPC
    with pytest.raises(StoreFull):
        log.append([b"lost"])
    assert list(RecordLog(PATH, disk=disk.reboot(random.Random(seed)))) == [b"not synced yet"]


@pytest.mark.parametrize("seed", range(8))
def test_records_read_after_a_restart_survive_a_power_cut(disk: MemoryDisk, seed: int) -> None:
    """The previous process was killed before it synced. Reading must sync the record, since other
    code relies on a record that it has read.
    """
    RecordLog(PATH, disk=disk).append([b"not synced yet"], durable=False)
    disk = disk.reboot(None)
    assert list(RecordLog(PATH, disk=disk)) == [b"not synced yet"]
    assert list(RecordLog(PATH, disk=disk.reboot(random.Random(seed)))) == [b"not synced yet"]


@pytest.mark.parametrize("prepare", [RecordLog.keep_open, lambda log: log.rewrite([b"0"])])
def test_open_log_can_be_appended_to_without_new_descriptors(
    tmp_path: Path, prepare: Callable[[RecordLog], object]
) -> None:
    path = tmp_path / "votes.log"
    RecordLog(path).append([b"0"])
    log = RecordLog(path)
    prepare(log)
    with no_more_descriptors():
        log.append([b"1"])
        with pytest.raises(StoreError) as caught:
            log.rewrite([b"short"])
        log.append([b"2"])
    assert caught.value.code == "FD-LIMIT"
    assert list(log) == list(RecordLog(path)) == [b"0", b"1", b"2"]


def test_append_that_cannot_open_its_file_leaves_the_log_usable(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    RecordLog(PATH, disk=disk)
    log = RecordLog(PATH, disk=disk)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "opened", refused)
        with pytest.raises(StoreError) as caught:
            log.append([b"lost"])
        assert caught.value.code == "FD-LIMIT"
    log.append([b"after"])
    assert list(RecordLog(PATH, disk=disk)) == [b"after"]


def test_log_refuses_appends_if_its_rewrite_was_not_synced(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    log.append([b"a", b"b"])
    disk.fail_at, disk.failure = len(disk.writes) + 5, errno.EIO
    with pytest.raises(StoreError):
        log.rewrite([b"b"])
    assert disk.writes[-1].startswith("sync directory")
    with pytest.raises(StoreError) as caught:
        log.append([b"c"])
    assert caught.value.code == "LOG-CLOSED"
    log.rewrite([b"b"])
    log.append([b"c"])
    assert list(RecordLog(PATH, disk=disk)) == [b"b", b"c"]


def test_log_that_cannot_be_cut_back_refuses_appends(disk: MemoryDisk) -> None:
    log = RecordLog(PATH, disk=disk)
    log.append([b"before"])
    disk.fail_at, disk.failure, disk.forever = len(disk.writes) + 1, errno.EIO, True
    with pytest.raises(StoreError):
        log.append([b"lost"])
    disk.fail_at = 0
    with pytest.raises(StoreError) as caught:
        log.append([b"after"])
    assert caught.value.code == "LOG-CLOSED"
    assert list(RecordLog(PATH, disk=disk)) == [b"before"]


def story(log: RecordLog, durable: list[int]) -> None:
    """Append and rewrite records in every way that the log offers. After each durable write, add to
    `durable` the number of records that must survive.
    """
    log.append([b"0"])
    durable.append(1)
    log.append([b"1", b"2" * 700], durable=False)
    log.append([b"3" * 1300], durable=False)
    log.append([b"4"])
    durable.append(5)
    log.append([b"5"], durable=False)
    log.rewrite([b"0", b"1", b"2" * 700, b"3" * 1300, b"4", b"5"])
    durable.append(6)
    log.append([b"6"])
    durable.append(7)


RECORDS = [b"0", b"1", b"2" * 700, b"3" * 1300, b"4", b"5", b"6"]


def writes_of_the_story() -> int:
    disk = MemoryDisk()
    story(RecordLog(PATH, disk=disk), [])
    return len(disk.writes)


@pytest.mark.parametrize("fail_at", range(1, writes_of_the_story() + 2))
def test_crash_at_any_write_keeps_all_durable_records_intact(fail_at: int) -> None:
    for seed in range(25):
        disk = MemoryDisk(fail_at=fail_at)
        durable = [0]
        with suppress(PowerCut):
            story(RecordLog(PATH, disk=disk), durable)
        disk = disk.reboot(random.Random(seed) if seed else None)
        found = list(RecordLog(PATH, disk=disk))
        assert found == RECORDS[: len(found)], f"seed {seed}"
        assert len(found) >= durable[-1], f"seed {seed}"
        RecordLog(PATH, disk=disk).append([b"on"])
        assert list(RecordLog(PATH, disk=disk.reboot(random.Random(seed)))) == [*found, b"on"]
