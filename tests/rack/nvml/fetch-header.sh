#!/bin/sh
# fetch-header.sh DIR: puts NVIDIA's nvml.h of Debian 13 (non-free, libnvidia-ml-dev) into DIR.
#
# Debian 12's is of CUDA 11.8 and lacks half of what is needed. The mirror is the one this system already uses; its apt
# configuration is read, not changed: everything lies in a private folder that is removed again.
set -eu
[ $# -eq 1 ] || { echo "usage: fetch-header.sh DIR" >&2; exit 2; }
mkdir -p "$1"
target=$(cd "$1" && pwd)
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)
[ -n "$mirror" ] || { echo "fetch-header.sh: no Debian archive in this system's apt sources" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
: > "$work/status"
echo "deb $mirror trixie non-free" > "$work/sources.list"
cat > "$work/apt.conf" <<EOF
Dir::State "$work";
Dir::State::status "$work/status";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "root";
EOF
APT_CONFIG=$work/apt.conf
export APT_CONFIG
cd "$work"
apt-get -qq update
apt-get -qq download libnvidia-ml-dev
dpkg-deb -x libnvidia-ml-dev_*.deb unpacked
cp unpacked/usr/include/nvml.h "$target/nvml.h"
