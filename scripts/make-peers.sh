#!/bin/sh
# Builds terrace-bench with the stores it is compared with: RocksDB, LevelDB, LMDB, fjall and redb.
#
# Debian 12 or later, or a relative of it; as root it installs what is missing, otherwise it says what that is.
# RocksDB is built from its sources: allow 20 minutes on two cores.
set -eu

packages="g++ make libclang-dev libleveldb-dev"
missing=""
for package in $packages; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "first: apt-get install$missing" >&2
        exit 1
    fi
    apt-get update
    # shellcheck disable=SC2086  # several packages
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
fi

# RocksDB's own Makefile builds for the processor at hand; its crate, left alone, for the oldest one, whose checksums
# are slow. What the caller sets comes later and wins. A build without this flag would build RocksDB anew.
CXXFLAGS="-march=native ${CXXFLAGS:-}"
export CXXFLAGS

cd "$(dirname "$0")/.."
cargo build --release -p terrace-bench --features peers "$@"
echo "built: target/release/terrace-bench compare --suite quick --out DIR"
