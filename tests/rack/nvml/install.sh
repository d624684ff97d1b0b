#!/bin/sh
# install.sh DESTDIR [BUILD_DIR]: lays the emulator out below DESTDIR. BUILD_DIR is what build.sh wrote (default: .rack/nvml).
# The image builder runs ldconfig afterwards. Links are real ones, so no systemctl is needed.
set -eu
[ $# -ge 1 ] || { echo "usage: install.sh DESTDIR [BUILD_DIR]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
dest=$1
build=${2:-$here/../../../.rack/nvml}
[ -f "$build/libnvidia-ml.so.1" ] || { echo "install.sh: no libnvidia-ml.so.1 in $build: run build.sh first" >&2; exit 2; }

put() { mkdir -p "$dest/$(dirname "$3")" && cp "$2" "$dest/$3" && chmod "$1" "$dest/$3"; }
link() { mkdir -p "$dest/$(dirname "$2")" && ln -sfn "$1" "$dest/$2"; }

put 0644 "$build/libnvidia-ml.so.1" usr/local/lib/nvml-emulator/libnvidia-ml.so.1
for file in statefiles.py pcitree.py keys.py; do put 0644 "$here/$file" "usr/lib/nvml-emulator/$file"; done
put 0755 "$here/emulator.py" usr/lib/nvml-emulator/emulator.py
for file in "$here"/profiles/*.profile; do put 0644 "$file" "usr/lib/nvml-emulator/profiles/$(basename "$file")"; done
link ../lib/nvml-emulator/emulator.py usr/sbin/nvml-emulator

# ldconfig reads these files in the order of their names, and of two libraries with one soname the loader takes the one found first:
# the distribution's, in a directory of its own or the default one, comes later whatever its package does.
mkdir -p "$dest/etc/ld.so.conf.d"
echo /usr/local/lib/nvml-emulator > "$dest/etc/ld.so.conf.d/000-nvml-emulator.conf"

put 0644 "$here/units/nvml-emulator.service" usr/lib/systemd/system/nvml-emulator.service
put 0644 "$here/units/nvidia-persistenced.service" usr/lib/systemd/system/nvidia-persistenced.service
put 0644 "$here/units/nvidia-persistenced.service.conf" etc/systemd/system/nvidia-persistenced.service.d/50-nvml-emulator.conf
link /usr/lib/systemd/system/nvml-emulator.service etc/systemd/system/sysinit.target.wants/nvml-emulator.service
link /usr/lib/systemd/system/nvidia-persistenced.service etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service
