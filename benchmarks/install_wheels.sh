#!/bin/sh
# Installs packages from a folder, for machines without network:
#
#   sh benchmarks/install_wheels.sh FOLDER TARGET && PYTHONPATH=TARGET python3 -m benchmarks.gpu
#
#   FOLDER/SHA256SUMS                     what `sha256sum *.whl *.tar.xz` printed before files were split
#   FOLDER/*.whl, *.tar, *.tar.xz         unpacked into TARGET
#   FOLDER/NAME.part-1-of-3, -2-of-3, …   the parts of a file, which are joined first
#
# Files may arrive over several runs: what is unpacked already is skipped, and what is incomplete waits for
# its other parts. Nothing is resolved, compiled or run. If TARGET has no folder `nvidia`, it becomes a link to
# the one of PYTHON (default: python3): ONNX Runtime looks for the libraries of CUDA next to itself.
set -eu

[ $# -eq 2 ] || { echo "usage: sh $0 FOLDER TARGET" >&2; exit 2; }
mkdir -p "$2"
folder=$(cd "$1" && pwd) target=$(cd "$2" && pwd) python=${PYTHON:-python3}

[ -f "$folder/SHA256SUMS" ] || { echo "$folder has no SHA256SUMS." >&2; exit 1; }
for part in "$folder"/*.part-1-of-*; do
    [ -e "$part" ] || continue
    file=${part%.part-1-of-*} count=${part##*-of-} at=1
    [ ! -e "$file" ] || continue
    : > "$file.joined"
    while [ "$at" -le "$count" ] && [ -e "$file.part-$at-of-$count" ]; do
        cat "$file.part-$at-of-$count" >> "$file.joined"
        at=$((at + 1))
    done
    if [ "$at" -gt "$count" ]; then
        mv "$file.joined" "$file"
    else
        rm "$file.joined"
        echo "waits: ${file##*/}, for its part $at of $count"
    fi
done

"$python" - "$folder" "$target" << 'EOF'
import hashlib
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

folder, target = map(Path, sys.argv[1:])


def install(line: str) -> str:
    expected, name = line.split(maxsplit=1)
    name = name.strip().lstrip("*")
    file, done = folder / name, target / f".installed-{name}"
    if not file.is_file():
        return ""
    if done.is_file() and done.read_text() == expected:
        return f"is there: {name}"
    with file.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != expected:
            raise SystemExit(f"{file} is damaged: its checksum is not the one in SHA256SUMS. Delete it, and carry it again.")
    if name.endswith(".whl"):
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(target)
    else:
        with tarfile.open(file) as packed:
            packed.extractall(target, filter="data")
    done.write_text(expected)
    return f"installed: {name}, {file.stat().st_size / 2**20:.1f} MiB"


lines = (folder / "SHA256SUMS").read_text().splitlines()
with ThreadPoolExecutor() as pool:
    for said in filter(None, pool.map(install, lines)):
        print(said, flush=True)
EOF

if [ ! -e "$target/nvidia" ]; then
    found=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/nvidia
    [ ! -d "$found" ] || ln -s "$found" "$target/nvidia"
fi
