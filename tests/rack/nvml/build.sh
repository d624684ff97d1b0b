#!/bin/sh
# build.sh INCLUDE_DIR OUTPUT_DIR: compiles libnvidia-ml.so.1 and abi.json.
#
# INCLUDE_DIR holds NVIDIA's nvml.h of CUDA 12.4 or newer (Debian 13 non-free: libnvidia-ml-dev, unpacked; the header is never committed).
# An older one is replaced by the right one for this build (fetch-header.sh). Needs gcc and libc6-dev. Build on the oldest system that is to run it: the demo rack uses Debian 12 (glibc 2.36).
set -eu
[ $# -eq 2 ] || { echo "usage: build.sh INCLUDE_DIR OUTPUT_DIR" >&2; exit 2; }
include=$1
output=$2
source=$(dirname "$0")/src
[ -f "$include/nvml.h" ] || { echo "build.sh: no nvml.h in $include (Debian 13, non-free: libnvidia-ml-dev)" >&2; exit 2; }
mkdir -p "$output"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! grep -q 'define NVML_FI_DEV_POWER_REQUESTED_LIMIT' "$include/nvml.h"; then
    sh "$(dirname "$0")/fetch-header.sh" "$work/include"
    include=$work/include
fi

# -isystem: NVIDIA's header is not ours to warn about.
flags="-std=gnu11 -O2 -Wall -Wextra -Werror -isystem $include"
# shellcheck disable=SC2086
${CC:-gcc} $flags -fPIC -shared -pthread -Wl,-soname,libnvidia-ml.so.1 -Wl,-z,now -Wl,--no-undefined \
    -o "$work/libnvidia-ml.so.1" "$source"/*.c -lm
# shellcheck disable=SC2086
${CC:-gcc} $flags -o "$work/abi" "$source"/abi/abi.c
"$work/abi" > "$work/abi.json"
# Renamed into place: a process that has the old library mapped keeps it whole.
for file in libnvidia-ml.so.1 abi.json; do
    cp "$work/$file" "$output/.$file.new"
    mv "$output/.$file.new" "$output/$file"
done
