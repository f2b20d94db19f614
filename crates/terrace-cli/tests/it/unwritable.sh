# Databases of every engine, closed and killed, on a small file system: read where no byte is free and where nothing may
# be written. $1 is the command, $2 an empty directory; each argument that follows is an engine and its pool.
set -eu
terrace=$1 work=$2
shift 2
disk=$work/disk
mkdir "$disk"
mount -t tmpfs -o size=320m none "$disk"
mkfifo "$work/fifo"
exec 3<>"$work/fifo"
i=0
while [ $i -lt 3000 ]; do
    printf 'key/%05d\tvalue %d of a record that takes some room\n' $i $i
    i=$((i + 1))
done > "$work/records.tsv"

fail() { echo "FAILED: $*"; exit 1; }

make() { # engine, end, flags
    db=$disk/$1-$2
    engine=$1 end=$2
    shift 2
    "$terrace" import "$db" "$work/records.tsv" --engine "$engine" --pm 8MiB "$@" > /dev/null
    if [ "$end" = killed ]; then
        "$terrace" __write "$db" "$@" > "$work/fifo" &
        writer=$!
        head -n 50 <&3 > /dev/null
        kill -KILL $writer
        wait $writer 2> /dev/null || true
    fi
    "$terrace" export "$db" "$work/$engine-$end.tsv" > /dev/null
}

read_all() { # where
    for db in "$disk"/*-closed "$disk"/*-killed; do
        name=${db##*/}
        "$terrace" export "$db" > "$work/now.tsv" || fail "export of $name, $1"
        cmp "$work/now.tsv" "$work/$name.tsv" || fail "another export of $name, $1"
        [ "$("$terrace" get "$db" key/00042)" = 'value 42 of a record that takes some room' ] || fail "get from $name, $1"
        "$terrace" check "$db" || fail "check of $name, $1"
        "$terrace" stat "$db" | grep -q 'to read only' || fail "stat of $name, $1"
        case $name in
            turbo*) ;;
            *) "$terrace" scan "$db" --prefix key/0000 --keys | grep -q key/00009 || fail "scan of $name, $1" ;;
        esac
    done
}

refuse() { # databases, where, words
    for name in $1; do
        code=0
        "$terrace" put "$disk/$name" new value > "$work/said" 2>&1 || code=$?
        [ $code = 3 ] && grep -qi "$3" "$work/said" || fail "put to $name, $2: $code $(cat "$work/said")"
    done
}

all='' in_files=''
for end in closed killed; do
    for each in "$@"; do
        engine=${each% *} pool=${each#* }
        make "$engine" $end --pool "$pool"
        all="$all $engine-$end"
        # Others have room in their pools.
        [ "$pool" != auto ] || in_files="$in_files $engine-$end"
    done
done

cat /dev/zero > "$disk/fill" 2> /dev/null || true
read_all 'without a free byte'
refuse "$in_files" 'without a free byte' 'no space left'
read_all 'without a free byte, after a refused put'

mount -o remount,ro "$disk"
read_all 'on a file system mounted to be read'
refuse "$all" 'on a file system mounted to be read' 'read-only'
mount -o remount,rw "$disk"
rm "$disk/fill"

for db in "$disk"/*-closed "$disk"/*-killed; do
    "$terrace" put "$db" new value || fail "put to $db with room"
    [ "$("$terrace" get "$db" new)" = value ] || fail "get from $db with room"
done
echo done
