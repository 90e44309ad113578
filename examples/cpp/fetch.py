"""Put onnxruntime's C++ headers and library where CMake finds them, on Debian and Ubuntu.

    python examples/cpp/fetch.py

The headers come from the package libonnxruntime-dev, by `apt-get download`, the library from the
Python package onnxruntime that is installed here; a newer library serves older headers. The folder
is laid out like a release of onnxruntime.
"""

import argparse
import importlib.util
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "libonnxruntime-dev"
INCLUDE = "./usr/include/onnxruntime/"
FOLDER = Path(__file__).resolve().parents[2] / "build" / "onnxruntime"


def library() -> Path:
    """The library that the Python package has."""
    found = importlib.util.find_spec("onnxruntime")
    if found is None or found.origin is None:
        sys.exit("the Python package onnxruntime is missing; pip install onnxruntime")
    files = sorted((Path(found.origin).parent / "capi").glob("libonnxruntime.so.*"))
    if not files:
        sys.exit("the Python package onnxruntime has no libonnxruntime.so; take a release of onnxruntime")
    return files[0]


def headers() -> dict[str, bytes]:
    """The headers by name."""
    content = package()
    with tarfile.open(fileobj=io.BytesIO(member(content, b"data.tar.xz"))) as archive:
        return {
            entry.name.removeprefix(INCLUDE): archive.extractfile(entry).read()
            for entry in archive
            if entry.isfile() and entry.name.startswith(INCLUDE) and "/" not in entry.name.removeprefix(INCLUDE)
        }


def package() -> bytes:
    """The package with the headers, which apt has checked."""
    release = "unpack a release of onnxruntime instead, and give its folder as CMAKE_PREFIX_PATH"
    apt = shutil.which("apt-get")
    if apt is None:
        sys.exit(f"apt-get is not here; {release}")
    with tempfile.TemporaryDirectory() as folder:
        words = [apt, "download", "-o", "APT::Sandbox::User=root", PACKAGE]
        said = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        found = list(Path(folder).glob("*.deb"))
        if said.returncode != 0 or not found:
            sys.exit(f"apt-get has no {PACKAGE} here, which Debian 13 has: {said.stderr.strip()}; {release}")
        return found[0].read_bytes()


def member(archive: bytes, name: bytes) -> bytes:
    """A file of an ar archive, which a Debian package is."""
    start = 8  # after the magic
    while start < len(archive):
        size = int(archive[start + 48 : start + 58])
        if archive[start : start + 16].rstrip(b" /") == name:
            return archive[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    sys.exit(f"the package has no {name.decode()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder; its parts are replaced")
    out = parser.parse_args().out
    source = library()
    for folder, contents in {"include": headers(), "lib": {}}.items():
        (out / folder).mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (out / folder / name).write_bytes(content)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # the linker's name, and the loader's
        (out / "lib" / name).unlink(missing_ok=True)
        (out / "lib" / name).symlink_to(source)
    print(out)


if __name__ == "__main__":
    main()
