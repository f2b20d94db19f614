#!/bin/busybox sh
# The first and only process of the machine that dax-vm.sh boots. The kernel's command line says what to do:
#   terrace.job=probe|cycle   terrace.pool=fsdax|devdax|plain|control
#   terrace.new=1             the media are blank: make namespaces and file systems
#   terrace.acked=N           writes that an earlier life acknowledged
# Everything is said on the console; lines begin with "terrace:" or "init:".

/bin/busybox mkdir -p /proc /sys /dev /pm /ssd /tmp
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

halt_machine() {
    sync
    reboot -f
    sleep 1000
}

fail() {
    echo "init: FAILED: $*"
    halt_machine
}

job='' pool='' new=0 acked=0
for word in $(cat /proc/cmdline); do
    case $word in
        terrace.job=*) job=${word#*=} ;;
        terrace.pool=*) pool=${word#*=} ;;
        terrace.new=*) new=${word#*=} ;;
        terrace.acked=*) acked=${word#*=} ;;
    esac
done

for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" || fail "insmod $module"
done

wait_for() {
    n=0
    while [ ! -e "$1" ]; do
        n=$((n + 1))
        [ $n -lt 100 ] || fail "$1 does not appear"
        sleep 0.1
    done
}

# Turns the raw namespace into one of the kind named: pfn (a block device with DAX) or dax (a character device).
make_namespace() {
    nd=/sys/bus/nd/devices
    wait_for /dev/pmem0
    seed=$(cat $nd/region0/$1_seed)
    case $1 in pfn) driver=nd_pmem ;; dax) driver=dax_pmem ;; esac
    echo namespace0.0 > /sys/bus/nd/drivers/nd_pmem/unbind &&
        cat /proc/sys/kernel/random/uuid > "$nd/$seed/uuid" &&
        echo 2097152 > "$nd/$seed/align" &&
        echo ram > "$nd/$seed/mode" &&
        echo namespace0.0 > "$nd/$seed/namespace" &&
        echo "$seed" > /sys/bus/nd/drivers/$driver/bind || fail "no $1 namespace"
}

make_ext4() {
    wait_for "$1"
    # By its path: busybox has a lesser one of the same name.
    /real/mke2fs -q -F -t ext4 -b 4096 "$1" || fail "mke2fs $1"
}

# Mounts a device; with options, or the test fails: falling back would test something else.
mount_ext4() {
    wait_for "$1"
    mount -t ext4 -o "$3" "$1" "$2" || fail "mount -o $3 $1"
}

mount_ssd() {
    [ "$new" = 0 ] || make_ext4 /dev/vda
    mount_ext4 /dev/vda /ssd rw
}

# The store's own description of a pool, after a write, and what `check` thinks. DIR POOL
describe() {
    terrace put "$1" greeting hello --pool "$2" --pm 100MiB || fail "put in $1"
    terrace stat "$1" | grep -E '^(pool|durability|opened) ' | sed "s|^|terrace: $3: |"
    terrace check "$1" | sed "s|^|terrace: $3: |"
}

domain() {
    cat /sys/bus/nd/devices/region0/persistence_domain 2> /dev/null || echo absent
}

probe() {
    echo "init: $(uname -r), persistence_domain $(domain)"
    mount_ssd
    describe /ssd/disk auto disk
    case $pool in
        fsdax)
            # virtio-pmem has pages for DAX as it is.
            [ "$(cat /sys/bus/nd/devices/ndbus0/provider)" = virtio-pmem ] || make_namespace pfn
            make_ext4 /dev/pmem0
            mount_ext4 /dev/pmem0 /pm dax
            describe /pm/db auto dax
            umount /pm
            mount_ext4 /dev/pmem0 /pm dax=never
            describe /pm/plain auto dax=never
            # Closed in order under DAX, opened through the page cache: the same contents.
            terrace get /pm/db greeting | grep -q hello || fail "the database made under DAX is not the same"
            ;;
        devdax)
            make_namespace dax
            wait_for /dev/dax0.0
            if [ "$(cat /sys/bus/nd/devices/ndbus0/provider)" = virtio-pmem ]; then
                # Nothing stored there could be made durable.
                terrace --pool /dev/dax0.0 --pm 100MiB put /ssd/db greeting hello > /tmp/refused 2>&1 && fail "put on virtio-pmem"
                sed 's|^|terrace: devdax: |' /tmp/refused
                echo "init: probed"
                return
            fi
            describe /ssd/db /dev/dax0.0 devdax
            terrace repair /ssd/db | sed 's|^|terrace: repair: |'
            # It is a copy that is looked at, and memory is short here.
            TMPDIR=/ssd terrace dump /dev/dax0.0 | grep -q slm.index || fail "dump of a device"
            [ -c /dev/dax0.0 ] || fail "the device node is gone"
            terrace get /ssd/db greeting | grep -q hello || fail "repair lost a record"
            ;;
    esac
    echo "init: probed"
}

cycle() {
    case $pool in
        fsdax)
            [ "$new" = 0 ] || { make_namespace pfn && make_ext4 /dev/pmem0; }
            mount_ext4 /dev/pmem0 /pm dax
            power_cut /pm/db auto "$acked"
            ;;
        devdax)
            [ "$new" = 0 ] || make_namespace dax
            wait_for /dev/dax0.0
            mount_ssd
            power_cut /ssd/db /dev/dax0.0 "$acked"
            ;;
        plain)
            mount_ssd
            power_cut /ssd/db auto "$acked" sync
            ;;
        control)
            mount_ssd
            power_cut /ssd/db auto "$acked" emulated
            ;;
    esac
}

$job 2>&1
halt_machine
