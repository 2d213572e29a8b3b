#!/bin/sh
# The kernels and the pool's decode graphs on a machine with a CUDA GPU, in under 8 minutes:
# `bench/gpu.sh [WHEEL] [options of bench/kernels.py]`.
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
        cp -r "$here/../edgecloud" "$unpacked/edgecloud"
        cp -r "$here/../kernels" "$here/../pool" "$unpacked/edgecloud/"
        ;;
esac
# Not installed: of all of edgecloud only what computes is imported, and that needs only torch and triton.
export PYTHONPATH="$unpacked:$here"
case " $* " in
    *" --dry-run "*) dry=--dry-run minutes=7 ;;
    *) dry='' minutes=5 ;;
esac
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || [ "$dry" ] || {
    echo "torch sees no CUDA GPU here: run bench/gpu.sh on a machine that has one, or use --dry-run." >&2
    exit 2
}
failed=0
# A capture that hangs must not keep the kernels from being looked at.
case " $* " in
    *" --only "*) ;;
    *) timeout 130 "$python" "$here/decode_graphs.py" $dry || failed=1 ;;
esac
"$python" "$here/kernels.py" --minutes "$minutes" "$@" || failed=1
exit "$failed"
