#!/bin/sh
# Tests and measures devices: run.sh [DEVICE..], by default every device that `isograd devices` lists. Needs nothing but
# what every system has: sh, sed, tar, xz.
#
# OUT     where results go (results, beside this script): for each device tests.txt, bench.txt and bench.json, and
#         summary.txt with what was run and passed
# ONLY    `tests` or `bench`
# FILTER  the tests whose op begins so, such as softmax
# BENCH   options of `isograd bench`, such as "--quick --filter softmax"

here=$(cd "$(dirname "$0")" && pwd) || exit 1
out=${OUT:-$here/results}
mkdir -p "$out" || exit 1
: > "$out/summary.txt" || exit 1
status=0
programs=$(mktemp -d) || exit 1
trap 'rm -rf "$programs"' EXIT
xz -dc "$here/programs.tar.xz" | tar -xf - -C "$programs" || exit 1

say() {
    echo "$*" | tee -a "$out/summary.txt"
}

# fail DEVICE PROGRAM WHY
fail() {
    say "$1 $2: FAILED, $3"
    status=1
}

# run_test DEVICE PROGRAM FILTER: appends the output to the device's tests.txt, and the counts to the summary.
run_test() {
    log=$out/$folder/last.txt
    started=$(date +%s)
    "$2" "$3" > "$log" 2>&1
    code=$?
    seconds=$(($(date +%s) - started))
    echo "== $1 ${2##*/}" >> "$out/$folder/tests.txt"
    cat "$log" >> "$out/$folder/tests.txt"
    counts=$(sed -n 's/^test result: [^.]*\. \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' "$log" | tail -n 1)
    rm -f "$log"
    if [ -z "$counts" ]; then
        fail "$1" "${2##*/}" "it ended with $code and no result"
        return
    fi
    set -- "$1" "$2" $counts
    say "$1 ${2##*/}: $(($3 + $4)) run, $3 passed, $4 failed, $5 ignored, $seconds s"
    [ "$code" -eq 0 ] || status=1
}

run_tests() {
    : > "$out/$folder/tests.txt"
    for program in "$programs"/tests/*; do
        ISOGRAD_REQUIRE=$1 run_test "$1" "$program" "${1%:0}::$FILTER"
    done
    # Only the first device of a backend is what its own tests open.
    case $1 in *:0) ;; *) return ;; esac
    [ -d "$programs/${1%%:*}" ] || return
    for program in "$programs/${1%%:*}"/*; do
        run_test "$1" "$program" "$FILTER"
    done
}

run_bench() {
    # The options are several words.
    # shellcheck disable=SC2086
    if "$isograd" bench --device "$1" --json "$out/$folder/bench.json" $BENCH > "$out/$folder/bench.txt" 2>&1; then
        say "$1 bench: $(grep -c '"outcome":"measured"' "$out/$folder/bench.json") rows measured"
    else
        fail "$1" bench "see bench.txt"
    fi
}

# Bad indices are errors of the call that met them, as the tests expect.
export ISOGRAD_CHECKED=1

isograd=$programs/bin/isograd
[ $# -gt 0 ] || set -- $("$isograd" devices | sed -n 's/^\([a-z]*:[0-9]*\|cpu\) .*/\1/p')
for device in "$@"; do
    case $device in cpu | *:*) ;; *) device=$device:0 ;; esac
    if ! "$isograd" devices | grep "^$device " > /dev/null; then
        fail "$device" device "\`isograd devices\` does not list it"
        continue
    fi
    folder=$(echo "$device" | tr : -)
    mkdir -p "$out/$folder" || exit 1
    [ "$ONLY" = bench ] || run_tests "$device"
    [ "$ONLY" = tests ] || ISOGRAD_CHECKED=0 run_bench "$device"
done
exit $status
