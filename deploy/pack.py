"""``python -m deploy.pack [site|stack]``: packages for a machine with a GPU and no registry.

It writes dist/gpu/NAME.tar.xz with the packages of pack.toml, and checks that they import. vLLM's
libraries lose the code that a dense model in bfloat16 never runs on a Hopper GPU: machine code for
other GPUs, and attention in other dtypes. They load in an older torch than vLLM pins, since they
use torch's stable ABI.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_ARCHIVES = _ROOT / "dist/gpu"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
_MOST_MIB = 50  # a machine that is lent may take 64 with the project
_HOPPER = 90
_MACHINE_CODE = 2  # the kind of such entries; others are PTX
_FAT_BINARY = struct.Struct("<IHHQ")  # its magic number, version, header and size
_ENTRY = struct.Struct("<HHIQ12xI")  # its kind, version, header, size, and GPU
_SECTION = struct.Struct("<I20xQQ")  # its name, place and size
_MAGIC = 0xBA55ED50
_ATTENTION = re.compile(rb"CollectiveMainloopFwdSm90\w{0,400}")
_OTHER_DTYPES = re.compile(rb"float_e4m3|half_t")


def write_archive(name: str) -> None:
    """Write an archive of packages; it may not be too large to be carried along."""
    packages = _TABLE[name]
    archive = _ARCHIVES / f"{name}.tar.xz"
    _ARCHIVES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        _download(packages, Path(folder, "wheels"))
        for wheel in sorted(Path(folder, "wheels").iterdir()):
            unpack_wheel(wheel, site, packages)
        with tarfile.open(archive, "w:xz", preset=6) as files:
            files.add(site, ".")
    mib = archive.stat().st_size / 2**20
    print(f"{archive}: {mib:.1f} MiB")
    if mib > _MOST_MIB:
        raise SystemExit(f"this is more than {_MOST_MIB} MiB; leave more out in deploy/pack.toml")


def _download(packages: Mapping[str, Any], wheels: Path) -> None:
    constraints = ["--constraint", str(_ROOT / "deploy/constraints.txt"), "--no-deps"]
    target = ["--implementation", "cp", "--python-version", _TABLE["python"]]
    target += [f"--platform={platform}" for platform in _TABLE["platforms"]]
    target += ["--only-binary=:all:", "--dest", str(wheels)]
    subprocess.run(
        [*_PIP, "download", *constraints, *target, *packages["wheels"]],
        check=True,
    )
    if packages["source"]:
        target = ["--no-build-isolation", "--wheel-dir", str(wheels)]
        subprocess.run(
            [*_PIP, "wheel", *constraints, *target, *packages["source"]],
            check=True,
        )


def unpack_wheel(wheel: Path, site: Path, packages: Mapping[str, Any]) -> None:
    """Unpack the files of a wheel that are needed, and shrink vLLM's libraries."""
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            is_library = name.startswith("vllm/") and ".so" in name
            if is_library and not re.match(packages["libraries"], name):
                continue
            if re.search(packages.get("left_out", "^$"), name):
                continue
            path = Path(files.extract(name, site))
            if is_library:
                path.write_bytes(drop_unused_code(path.read_bytes()))
                if shutil.which("strip"):
                    subprocess.run(["strip", "--strip-unneeded", path], check=True)


def drop_unused_code(library: bytes) -> bytes:
    """Replace by zeros the machine code in a library that this GPU or such a model never runs."""
    data = bytearray(library)
    for start, end in _code_sections(data):
        place = start
        while place + _FAT_BINARY.size <= end:
            magic, _, header, size = _FAT_BINARY.unpack_from(data, place)
            if magic != _MAGIC:
                place += 8
                continue
            _clear_entries(data, place + header, place + header + size)
            place += header + size
    return bytes(data)


def _code_sections(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the sections .nv_fatbin of a file in ELF."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]
    for label, offset, length in headers:
        if data.startswith(b".nv_fatbin\0", headers[names][1] + label):
            yield offset, offset + length


def _clear_entries(data: bytearray, place: int, end: int) -> None:
    """Clear the entries of a fat binary that are not run."""
    entries = []
    while place < end:
        kind, _, header, size, gpu = _ENTRY.unpack_from(data, place)
        code = slice(place + header, place + header + size)
        entries.append((kind == _MACHINE_CODE, gpu, code))
        place = code.stop
    has_own = (True, _HOPPER) in [entry[:2] for entry in entries]
    for is_machine_code, gpu, code in entries:
        # The driver compiles PTX if there is no machine code for the GPU.
        fits = gpu == _HOPPER if is_machine_code else gpu <= _HOPPER and not has_own
        if not fits or _attends_in_other_dtype(data[code]):
            data[code] = bytes(code.stop - code.start)


def _attends_in_other_dtype(code: bytearray) -> bool:
    kernel = _ATTENTION.search(code)
    return kernel is not None and _OTHER_DTYPES.search(kernel[0]) is not None


def check_imports(name: str) -> None:
    """Import the packages of all archives in a Python that has torch and transformers."""
    python = os.environ.get("GPU_PYTHON")
    if not python:
        print(f"not imported: set GPU_PYTHON to a Python {_TABLE['python']} with torch 2.11")
        return
    with tempfile.TemporaryDirectory() as site:
        for archive in _ARCHIVES.glob("*.tar.xz"):
            with tarfile.open(archive) as files:
                files.extractall(site, filter="data")
        folders = (site, _ROOT / "proto", _ROOT, _ROOT / "packages/answers/src")
        paths = os.pathsep.join(map(str, folders))
        modules = ", ".join(_TABLE[name]["imports"])
        subprocess.run(
            [python, "-c", f"import {modules}"],
            env={**os.environ, "PYTHONPATH": paths},
            check=True,
        )
    print(f"{python} imports it")


if __name__ == "__main__":
    chosen = sys.argv[1] if sys.argv[1:] else "site"
    write_archive(chosen)
    check_imports(chosen)
