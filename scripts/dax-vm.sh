#!/usr/bin/env bash
# Terrace on the kernel's real DAX path, without persistent memory: an emulated NVDIMM in QEMU.
#
#   scripts/dax-vm.sh [CYCLES]        cycles on fsdax and on devdax each; 10 by default
#
# Probes: what the store takes each kind of medium for. Cycles: a machine writes, is killed in the midst of it
# (SIGKILL of QEMU), boots again, must have every write it had acknowledged, and goes on. What is needed (QEMU, a
# kernel, busybox) comes from Debian packages and is kept in $DAX_VM_CACHE (target/dax-vm); where they cannot be had
# the script says so and ends well, or badly if $DAX_VM_REQUIRED is set. $DAX_VM_SEED repeats the moments of the kills,
# though not what had been written by then. docs/persistence.md says what this can find and what it cannot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CYCLES=${1:-10}
OTHER_CYCLES=3
TARGET=${CARGO_TARGET_DIR:-target}
CACHE=${DAX_VM_CACHE:-$TARGET/dax-vm}
TRIPLE=x86_64-unknown-linux-gnu
SEED=${DAX_VM_SEED:-$RANDOM}
RANDOM=$SEED
# In the order in which they are loaded.
MODULES="libnvdimm nd_btt nd_pmem device_dax dax_pmem nfit virtio_ring virtio virtio_pci_legacy_dev
    virtio_pci_modern_dev virtio_pci virtio_blk nd_virtio virtio_pmem"
NVDIMM_BYTES=256M
DISK_BYTES=512M
# More than any boot takes on a slow machine.
PATIENCE_SECONDS=180

say() { printf '%s\n' "dax-vm: $*"; }

skip() {
    say "SKIPPED: $*"
    [ -z "${DAX_VM_REQUIRED:-}" ] || exit 1
    exit 0
}

fail() {
    say "FAILED: $*"
    say "the console's last lines ($LOG):"
    tail -n 15 "$LOG" | sed 's/^/    /'
    exit 1
}

# --- what is needed -----------------------------------------------------------------------------------------

install_tools() {
    local missing=()
    command -v qemu-system-x86_64 > /dev/null || missing+=(qemu-system-x86)
    command -v cpio > /dev/null || missing+=(cpio)
    command -v mke2fs > /dev/null || missing+=(e2fsprogs)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get > /dev/null || skip "${missing[*]} must be installed by hand: there is no apt-get"
    [ "$(id -u)" = 0 ] || skip "install ${missing[*]}"
    say "installing ${missing[*]}"
    apt-get update -q > "$CACHE/apt.log" 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}" \
        >> "$CACHE/apt.log" 2>&1 || skip "apt-get cannot install ${missing[*]}, see $CACHE/apt.log"
}

# The guest's kernel and busybox, unpacked to $CACHE/root.
fetch_guest() {
    [ ! -e "$CACHE/root/complete" ] || return 0
    command -v apt-get > /dev/null || skip "there is no apt-get to fetch a kernel with"
    rm -rf "$CACHE/root" "$CACHE/debs"
    mkdir -p "$CACHE/root" "$CACHE/debs"
    local kernel deb
    apt-get update -q >> "$CACHE/apt.log" 2>&1 || true
    kernel=$(apt-cache depends linux-image-cloud-amd64 2> /dev/null | awk '/Depends: linux-image/ { print $2 }' | sed -n 1p)
    [ -n "$kernel" ] || skip "apt-get knows no linux-image-cloud-amd64"
    (cd "$CACHE/debs" && apt-get download -q "$kernel" busybox-static) >> "$CACHE/apt.log" 2>&1 ||
        skip "apt-get cannot download $kernel and busybox-static, see $CACHE/apt.log"
    for deb in "$CACHE"/debs/*.deb; do
        dpkg -x "$deb" "$CACHE/root"
    done
    touch "$CACHE/root/complete"
}

# Static programs: the guest has no libraries of its own.
build_programs() {
    say "building the guest's programs"
    local build=(cargo build --quiet --release --target "$TRIPLE")
    export RUSTFLAGS="-C target-feature=+crt-static"
    "${build[@]}" -p terrace-cli --bin terrace
    "${build[@]}" -p terrace --example power_cut
}

make_initramfs() {
    local root=$CACHE/initramfs release=$TARGET/$TRIPLE/release library module found
    rm -rf "$root"
    mkdir -p "$root/bin" "$root/etc" "$root/modules" "$root/real"
    cp "$CACHE/root/bin/busybox" "$root/bin/"
    cp scripts/dax-vm-init.sh "$root/init"
    for program in "$release/terrace" "$release/examples/power_cut"; do
        strip -o "$root/bin/${program##*/}" "$program"
    done
    cp "$(command -v mke2fs)" "$root/real/"
    cp /etc/mke2fs.conf "$root/etc/"
    for library in $(ldd "$(command -v mke2fs)" | grep -o '/[^ ]*'); do
        mkdir -p "$root/${library%/*}"
        cp "$library" "$root/$library"
    done
    for module in $MODULES; do
        found=$(find "$CACHE/root/lib/modules" -name "$module.ko" -print -quit)
        [ -n "$found" ] || skip "the kernel has no module $module"
        cp "$found" "$root/modules/"
        echo "$module"
    done > "$root/modules/order"
    chmod +x "$root/init" "$root/bin"/* "$root/real"/*
    (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) > "$CACHE/initrd.gz"
}

# --- the machine ---------------------------------------------------------------------------------------------

# Replaces this shell by the machine, whose console goes to $LOG. MEDIUM is what -device makes of $WORK/pm.img:
# mem-ctrl, cpu or none for an NVDIMM with that persistence domain, virtio for virtio-pmem.
run_machine() {
    local medium=$1 words=$2 machine="q35,nvdimm=on" device="nvdimm,id=pm0,memdev=pm"
    case $medium in
        virtio) machine=q35 device="virtio-pmem-pci,id=pm0,memdev=pm" ;;
        none) ;;
        *) machine+=",nvdimm-persistence=$medium" ;;
    esac
    # Always emulated: /dev/kvm may open and still be of no use.
    exec qemu-system-x86_64 -accel tcg -cpu max -smp 1 -m 512M,slots=2,maxmem=4G -machine "$machine" \
        -object "memory-backend-file,id=pm,share=on,mem-path=$WORK/pm.img,size=$NVDIMM_BYTES" -device "$device" \
        -drive "file=$WORK/disk.img,format=raw,if=none,id=disk" -device virtio-blk-pci,drive=disk \
        -kernel "$KERNEL" -initrd "$CACHE/initrd.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off $words" \
        -nodefaults -no-user-config -display none -monitor none -serial stdio -no-reboot \
        < /dev/null > "$LOG" 2>&1
}

fresh_media() {
    rm -f "$WORK/pm.img" "$WORK/disk.img"
    truncate -s "$NVDIMM_BYTES" "$WORK/pm.img"
    truncate -s "$DISK_BYTES" "$WORK/disk.img"
}

# The lines of the console that begin so, without their beginning and the carriage return. The last line may have been
# cut short and is left out.
console() { sed -n '$!{s/\r$//;'"s/^$1: //p;}" "$LOG"; }

# Boots, waits for the machine to end by itself, and wants a line like each further argument on its console.
probe() {
    local name=$1 medium=$2 pool=$3
    shift 3
    LOG=$WORK/probe-$name.log
    fresh_media
    (run_machine "$medium" "terrace.job=probe terrace.pool=$pool terrace.new=1") &
    MACHINE=$!
    await "the end of the probe" '^init: probed|^init: FAILED|panic'
    wait "$MACHINE" || true
    MACHINE=''
    for line in "$@"; do
        console terrace | grep -- "^$line" > /dev/null || fail "$name: no line like: $line"
    done
    ! grep -q 'FAILED' "$LOG" || fail "$name"
    say "probe $name: $(console init | sed -n 1p)"
    console terrace | sed 's/^/    /'
}

# Waits until the console says PATTERN or the machine has ended.
await() {
    local what=$1 pattern=$2 began=$SECONDS
    until grep -qE "$pattern" "$LOG" 2> /dev/null; do
        kill -0 "$MACHINE" 2> /dev/null || return 0
        [ $((SECONDS - began)) -lt "$PATIENCE_SECONDS" ] || fail "$what did not come in $PATIENCE_SECONDS s"
        sleep 0.1
    done
}

# Kills the machine at some moment of its writing. Sets ACKED.
live_and_die() {
    local name=$1 number=$2 pool=$3 new=$4
    LOG=$WORK/$name-$number.log
    (run_machine mem-ctrl "terrace.job=cycle terrace.pool=$pool terrace.new=$new terrace.acked=$ACKED") &
    MACHINE=$!
    await "an acknowledgement" '^terrace: acknowledged|WRONG|FAILED|Error|panic'
    if grep -qE 'WRONG|FAILED|Error|panic' "$LOG"; then
        return 1
    fi
    kill -0 "$MACHINE" 2> /dev/null || return 1
    local moment=$((RANDOM % 3000))
    sleep "$((moment / 1000)).$(printf %03d $((moment % 1000)))"
    kill -KILL "$MACHINE"
    wait "$MACHINE" 2> /dev/null || true
    MACHINE=''
    ACKED=$(console terrace | awk -v n="$ACKED" '/^acknowledged/ { n = $2 } END { print n }')
}

# CYCLES times: write, die, and be found whole by the next life.
cycles() {
    local pool=$1 count=$2 began=$SECONDS number new=1
    fresh_media
    ACKED=0
    for number in $(seq 0 "$count"); do
        live_and_die "$pool" "$number" "$pool" "$new" || fail "$pool, life $number"
        new=0
        say "$pool $number: $(console terrace | grep '^verified'); now $ACKED; $(console terrace | sed -n 's/^work //p' | tail -n 1)"
        [ "$number" != 1 ] || console terrace | sed -n 1,3p | sed 's/^/    /'
    done
    local taken=$((SECONDS - began))
    say "$pool: $count kills survived, $ACKED writes acknowledged, $((taken * 10 / (count + 1))) tenths of a second a life"
}

# That the machine loses something at all: the code for persistent memory on a file of the page cache.
control() {
    fresh_media
    ACKED=0
    live_and_die control 0 control 1 || fail "control"
    if live_and_die control 1 control 0; then
        fail "control: $ACKED writes survived in the page cache"
    fi
    kill -KILL "$MACHINE" 2> /dev/null || true
    wait "$MACHINE" 2> /dev/null || true
    MACHINE=''
    say "control: lost, as it must be: $(sed -n 's/\r$//; s/^Error: //p' "$LOG" | sed -n 1p)"
}

mkdir -p "$CACHE"
CACHE=$(cd "$CACHE" && pwd)
install_tools
fetch_guest
build_programs
make_initramfs
KERNEL=$(find "$CACHE/root/boot" -name 'vmlinuz-*' -print -quit)
WORK=$(mktemp -d "$CACHE/run.XXXXXX")
MACHINE=''
cleanup() {
    [ -z "$MACHINE" ] || kill -KILL "$MACHINE" 2> /dev/null || true
    rm -f "$WORK/pm.img" "$WORK/disk.img"
}
trap cleanup EXIT
say "$(qemu-system-x86_64 --version | sed -n 1p); ${KERNEL##*/}; seed $SEED; consoles in $WORK"

ADR='flushed by cache line .ADR. with clwb'
EADR="flushed by the processor's caches themselves .eADR."
PAGE='flushed by msync only'
UNNAMED='the system names no persistence domain; lines are flushed'
probe fsdax-adr mem-ctrl fsdax "dax: pool .*; DAX file, $ADR$" "dax=never: pool .*; ordinary file, $PAGE$" \
    "disk: pool .*; ordinary file, $PAGE$"
probe devdax-adr mem-ctrl devdax "devdax: pool .*; device-dax, $ADR$"
probe fsdax-eadr cpu fsdax "dax: pool .*; DAX file, $EADR$"
probe devdax-eadr cpu devdax "devdax: pool .*; device-dax, $EADR$"
probe fsdax-unnamed none fsdax "dax: pool .*; DAX file, $ADR; $UNNAMED$"
probe devdax-unnamed none devdax "devdax: pool .*; device-dax, $ADR; $UNNAMED$"
probe virtio-pmem virtio fsdax "dax: pool .*; ordinary file, $PAGE$"
probe virtio-devdax virtio devdax "devdax: .*cannot hold a pool: .*virtio-pmem.*"

cycles fsdax "$CYCLES"
cycles devdax "$CYCLES"
cycles plain "$OTHER_CYCLES"
control
say "passed in $SECONDS s"
