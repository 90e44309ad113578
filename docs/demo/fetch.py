"""Put onnxruntime-web beside the demo: ort/onnxruntime-web.js, one script with all of it.

    python docs/demo/fetch.py

The package comes from the npm registry, by `npm pack`, and is checked against its SHA-512. The
script has the library, and ORT_FILES: its module, and the compressed WebAssembly in base64.
Scripts may be loaded by a page that was opened from disk; WebAssembly may not.
"""

import argparse
import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "onnxruntime-web@1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
LIBRARY, MODULE, WASM = "ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"
SCRIPT = Path(__file__).resolve().parent / "ort" / "onnxruntime-web.js"


def pack(folder: Path) -> Path:
    """The package's archive, in this folder."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not installed; install Node.js, which has it")
    words = [npm, "pack", PACKAGE, "--silent", "--pack-destination", str(folder)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=600)
    archives = list(folder.glob("*.tgz"))
    if said.returncode != 0 or not archives:
        sys.exit(f"npm pack {PACKAGE} failed: {said.stderr.strip() or said.stdout.strip()}")
    found = "sha512-" + base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    if found != INTEGRITY:
        sys.exit(f"{PACKAGE} has the integrity {found} instead of {INTEGRITY}; nothing was written")
    return archives[0]


def script_of(archive: Path) -> str:
    """The script, from the archive."""
    with tarfile.open(archive) as files:
        library, module, wasm = (files.extractfile(f"package/dist/{name}").read() for name in (LIBRARY, MODULE, WASM))
    smaller = base64.b64encode(gzip.compress(wasm, mtime=0)).decode()
    parts = json.dumps({"mjs": module.decode(), "wasm": smaller})
    return f"{library.decode()}\nconst ORT_FILES = {parts};\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = script_of(pack(Path(folder)))
    SCRIPT.parent.mkdir(exist_ok=True)
    partial = SCRIPT.with_suffix(".partial")
    partial.write_text(script, encoding="utf-8")
    partial.replace(SCRIPT)
    sys.stdout.write(f"{SCRIPT}\n")


if __name__ == "__main__":
    main()
