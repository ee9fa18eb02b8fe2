"""What goes to a machine with a GPU: a library keeps only the code that this GPU runs."""

import struct
import zipfile
from pathlib import Path

from deploy.pack import drop_unused_code, unpack_wheel

CUBIN, PTX = 2, 1
NAMES = b"\0.nv_fatbin\0.shstrtab\0"
FLOAT8 = b"CollectiveMainloopFwdSm90float_e4m3"
PACKAGES = {"libraries": r"vllm/(_C|_fa3)\.", "left_out": r"\.cuh$"}


def entry(kind: int, gpu: int, code: bytes) -> bytes:
    code = code.ljust(-len(code) % 8 + len(code), b"c")
    return struct.pack("<HHIQ12xI", kind, 0, 32, len(code), gpu) + code


def fat_binary(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def library(*binaries: bytes) -> bytes:
    code = b"\0" * 8 + b"".join(binaries)
    sections = [(0, 0, 0), (1, 64, len(code)), (12, 64 + len(code), len(NAMES))]
    table = 64 + len(code) + len(NAMES)
    head = struct.pack("<40xQ10xHHH", table, 40, len(sections), 2)
    rows = b"".join(struct.pack("<IIQQQQ", n, 0, 0, 0, *place) for n, *place in sections)
    return head + code + NAMES + rows


def test_machine_code_of_this_gpu_stays() -> None:
    before = library(
        fat_binary(entry(CUBIN, 80, b"of an A100"), entry(CUBIN, 90, b"of an H100")),
        fat_binary(entry(PTX, 80, b"compiled at first"), entry(CUBIN, 100, b"of a B200")),
        fat_binary(entry(CUBIN, 90, FLOAT8), entry(PTX, 90, b"unused")),
    )
    after = drop_unused_code(before)
    assert len(after) == len(before)
    assert b"of an H100" in after
    assert b"compiled at first" in after
    for code in (b"of an A100", b"of a B200", FLOAT8, b"unused"):
        assert code not in after


def test_a_wheel_without_what_is_not_run(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-1-py3-none-any.whl"
    names = ("vllm/__init__.py", "vllm/_moe.abi3.so", "vllm/kernel.cuh", "other/fast.so")
    with zipfile.ZipFile(wheel, "w") as files:
        for name in names:
            files.writestr(name, "")
    unpack_wheel(wheel, tmp_path / "site", PACKAGES)
    left = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.*")}
    assert left == {"vllm/__init__.py", "other/fast.so"}
