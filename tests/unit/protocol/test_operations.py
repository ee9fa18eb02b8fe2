"""The log of a client's operations: a damaged file is named, and takes no other's place."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from protocol.frames import FrameError, encode, pack, unpack_one
from protocol.operations import DamagedFile, Operation, OperationLog, Result

Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").touch()


def take_anothers_place(path: Path) -> None:
    number = 8
    messages = {".operation": Operation(number=number, do="end"), ".result": Result(number=number)}
    path.write_bytes(pack(encode(messages[path.suffix])))


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "cut in its head": lambda path: path.write_bytes(path.read_bytes()[:7]),
    "flipped": flip,
    "twice": lambda path: path.write_bytes(2 * path.read_bytes()),
    "a folder": make_folder,
    "another's": take_anothers_place,
}
damages = pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))


@pytest.fixture
def log(tmp_path: Path) -> OperationLog:
    log = OperationLog(tmp_path / "jobs" / "job")
    for number in range(3):
        assert log.add(Operation(number=number, do="forward"))
    log.finish(Result(number=0, version=1))
    return log


@damages
def test_a_damaged_operation_is_named_and_not_taken_for_absent(
    log: OperationLog, damage: Damage
) -> None:
    damage(log.folder / "000000001.operation")
    with pytest.raises(DamagedFile, match=r"^jobs/job/operations/000000001\.operation .*; restore"):
        log.operation(1)
    assert log.knows(1)


@damages
def test_a_damaged_operation_is_replaced_if_it_is_sent_again(
    log: OperationLog, damage: Damage
) -> None:
    damage(log.folder / "000000001.operation")
    assert log.add(operation := Operation(number=1, do="optim_step"))
    assert log.operation(1) == operation
    assert not log.add(operation)


def test_a_damaged_operation_that_was_done_is_not_replaced(log: OperationLog) -> None:
    (log.folder / "000000000.operation").write_bytes(b"")
    with pytest.raises(DamagedFile):
        log.add(Operation(number=0, do="end"))


@damages
def test_a_damaged_result_is_set_aside_twice_and_then_named(
    log: OperationLog, damage: Damage
) -> None:
    path = log.folder / "000000000.result"
    assert not log.was_damaged(0)
    for _ in range(2):
        damage(path)
        assert log.result_unless_damaged(0) is None
        assert log.was_damaged(0)
        assert log.unanswered(2) == [0, 1]
        log.finish(result := Result(number=0, version=1))
        assert log.result_unless_damaged(0) == result
    damage(path)
    with pytest.raises(DamagedFile, match=r"^jobs/job/operations/000000000\.result "):
        log.result_unless_damaged(0)


def test_operations_that_nobody_needs_go_and_what_is_no_file_of_the_log_stays(
    log: OperationLog,
) -> None:
    for name in ("note.txt", "0x.operation", ".000000009.operation-1-ab"):
        (log.folder / name).touch()
    (log.folder / "000000001.operation").unlink()
    (log.folder / "000000001.operation").mkdir()
    log.forget_before(2)
    assert (log.last, log.knows_all(range(1, 3)), log.knows_all(range(3))) == (2, True, False)


def test_a_file_of_one_record_holds_one() -> None:
    record = pack(encode(Result(number=1)))
    assert unpack_one(io.BytesIO(record)) == encode(Result(number=1))
    for content in (b"", record * 2, record + b"x"):
        with pytest.raises(FrameError):
            unpack_one(io.BytesIO(content))
