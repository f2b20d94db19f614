#!/usr/bin/env bash
# Every decoder under libFuzzer, one after the other (nightly toolchain with rust-src not needed, a C++ compiler needed).
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]      seconds for each target, 60 by default; all targets by default
#
# Each target gets half its time as the store is built, and half with checksums that guard nothing, which lets edits
# through to what lies behind them. What is found is in $FUZZ_DIR/artifacts (target/fuzz); run a binary of
# $FUZZ_DIR/*/release with such a file to see it again. New inputs stay in $FUZZ_DIR/corpus and are not committed; what
# found something is kept in fuzz/corpus, where `cargo test` runs it every time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SECONDS_EACH=${1:-60}
shift || true
TARGETS=("$@")
if [ ${#TARGETS[@]} = 0 ]; then
    for file in fuzz/fuzz_targets/*.rs; do
        TARGETS+=("$(basename "$file" .rs)")
    done
fi
DIR=${FUZZ_DIR:-${CARGO_TARGET_DIR:-target}/fuzz}
mkdir -p "$DIR/artifacts"
DIR=$(cd "$DIR" && pwd)
TRIPLE=x86_64-unknown-linux-gnu
COVERAGE="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares"

build() {
    RUSTFLAGS="--cfg fuzzing -Zsanitizer=address $COVERAGE $2" CARGO_TARGET_DIR="$DIR/$1" \
        cargo +nightly build --release --manifest-path fuzz/Cargo.toml --target "$TRIPLE"
}

build checked ""
build unchecked "--cfg terrace_no_checksums"

failed=0
for target in "${TARGETS[@]}"; do
    for kind in checked unchecked; do
        corpus=$DIR/corpus/$kind/$target
        mkdir -p "$corpus"
        log=$DIR/$target-$kind.log
        outcome=ok
        "$DIR/$kind/$TRIPLE/release/$target" -max_total_time=$((SECONDS_EACH / 2)) -timeout=20 -rss_limit_mb=2048 \
            -max_len=4096 -print_final_stats=1 -artifact_prefix="$DIR/artifacts/$target-$kind-" \
            "$corpus" "fuzz/corpus/$target" > "$log" 2>&1 || outcome=FAILED
        executed=$(sed -n 's/stat::number_of_executed_units: *//p' "$log")
        printf 'fuzz: %-18s %-10s %s, %s runs\n' "$target" "$kind" "$outcome" "${executed:-?}"
        [ "$outcome" = ok ] || failed=1
    done
done
exit $failed
