"""``python -m deploy.pack [site|stack]``: what a machine with a GPU and no registry lacks.

It writes dist/gpu/NAME.tar.xz with the packages of pack.toml, and checks that they import. From
vLLM's libraries everything goes that a dense model in bfloat16 never runs on a Hopper GPU: machine
code for other GPUs, and attention in other dtypes. Its code loads in an older torch than vLLM pins,
since it uses torch's stable ABI.
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
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
_MOST_MIB = 50  # a machine that is lent may take 64 with the project
_HOPPER = 90
_MACHINE_CODE = 2  # the kind of such entries; others are PTX
_FAT_BINARY = struct.Struct("<IHHQ")  # its magic number, version, header and size
_ENTRY = struct.Struct("<HHIQ12xI")  # its kind, version, header, size, and GPU
_MAGIC = 0xBA55ED50
_ATTENTION = re.compile(rb"CollectiveMainloopFwdSm90\w{0,400}")
_OTHER_DTYPES = re.compile(rb"float_e4m3|half_t")


def pack(name: str) -> Path:
    """Write an archive of packages."""
    packages = _TABLE[name]
    archive = _ROOT / f"dist/gpu/{name}.tar.xz"
    archive.parent.mkdir(parents=True, exist_ok=True)
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
    return archive


def _download(packages: Mapping[str, Any], wheels: Path) -> None:
    constraints = ["--constraint", str(_ROOT / "deploy/constraints.txt"), "--no-deps"]
    target = ["--implementation", "cp", "--python-version", _TABLE["python"]]
    target += [f"--platform={platform}" for platform in _TABLE["platforms"]]
    download = [*_PIP, "download", *constraints, "--only-binary=:all:", *target, "--dest", wheels]
    subprocess.run([*download, *packages["wheels"]], check=True)
    if packages["source"]:
        build = [*_PIP, "wheel", *constraints, "--no-build-isolation", "--wheel-dir", wheels]
        subprocess.run([*build, *packages["source"]], check=True)


def unpack_wheel(wheel: Path, site: Path, packages: Mapping[str, Any]) -> None:
    """Unpack what is needed of a wheel, and shrink its libraries of vLLM."""
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
            entries = list(_read_entries(data, place + header, place + header + size))
            has_own = any(kind == _MACHINE_CODE and gpu == _HOPPER for kind, gpu, *_ in entries)
            for kind, gpu, begin, length in entries:
                runs = gpu == _HOPPER if kind == _MACHINE_CODE else gpu <= _HOPPER and not has_own
                if not runs or _attends_in_other_dtype(data[begin : begin + length]):
                    data[begin : begin + length] = bytes(length)
            place += header + size
    return bytes(data)


def _code_sections(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the sections .nv_fatbin of a file in ELF."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for label, _, _, _, offset, length in headers:
        if data.startswith(b".nv_fatbin\0", headers[names][4] + label):
            yield offset, offset + length


def _read_entries(data: bytearray, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the kind, the GPU, the place and the size of each entry of a fat binary."""
    while place < end:
        kind, _, header, size, gpu = _ENTRY.unpack_from(data, place)
        yield kind, gpu, place + header, size
        place += header + size


def _attends_in_other_dtype(code: bytearray) -> bool:
    kernel = _ATTENTION.search(code)
    return kernel is not None and _OTHER_DTYPES.search(kernel[0]) is not None


def check_imports(archive: Path, name: str) -> None:
    """Import the packages from a new folder, with a Python that has torch and transformers."""
    python = os.environ.get("GPU_PYTHON")
    if not python:
        print(f"not imported: set GPU_PYTHON to a Python {_TABLE['python']} with torch 2.11")
        return
    with tempfile.TemporaryDirectory() as site:
        with tarfile.open(archive) as files:
            files.extractall(site, filter="data")
        paths = (site, _ROOT / "proto", _ROOT, _ROOT / "packages/answers/src")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [python, "-c", f"import {', '.join(_TABLE[name]['imports'])}"]
        subprocess.run(command, env=environment, check=True)
    print(f"{python} imports it")


if __name__ == "__main__":
    chosen = sys.argv[1] if sys.argv[1:] else "site"
    check_imports(pack(chosen), chosen)
