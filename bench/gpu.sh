#!/bin/sh
# The kernels on a machine with a CUDA GPU, in under 8 minutes: `bench/gpu.sh [WHEEL] [options of bench/kernels.py]`.
# Needs python3 with torch and triton, and nothing from the network. Without a wheel, this checkout is used.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

"$python" -c 'import torch, triton' 2>/dev/null || {
    echo "$python has no torch or no triton: set PYTHON to one that has both." >&2
    exit 2
}
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
case "${1:-}" in
    *.whl)
        "$python" -m zipfile -e "$1" "$unpacked"
        shift
        ;;
    *)
        mkdir "$unpacked/edgecloud"
        cp "$here/../edgecloud/__init__.py" "$unpacked/edgecloud/"
        cp -r "$here/../kernels" "$unpacked/edgecloud/kernels"
        ;;
esac
# Not installed: of all of edgecloud only the kernels are imported, and they need only torch and triton.
PYTHONPATH="$unpacked:$here" "$python" "$here/kernels.py" "$@"
