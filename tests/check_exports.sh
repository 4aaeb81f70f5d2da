#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What the public headers declare, what src/libspile.sym lists and what the shared library exports are the same:
# check_exports.sh ROOT libspile.so.
set -eu
root=$1
library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sed -n 's/^ *\(spile_[a-z0-9_]*\);$/\1/p' "$root/src/libspile.sym" | sort >"$work/listed"
# A version's name is itself a symbol, absolute ("A").
nm -P -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' | sort >"$work/exported"
# gcc writes down every function it has seen declared, with the file.
printf '#include <spile/%s>\n' spile.h metrics.h sys/store.h testing.h limits.h http.h >"$work/headers.c"
gcc -std=c11 -I"$root/include" -fsyntax-only -aux-info "$work/seen" "$work/headers.c"
awk 'match($0, /spile_[a-z0-9_]* \(/) { print substr($0, RSTART, RLENGTH - 2) }' "$work/seen" |
    sort -u >"$work/declared"

failed=0
for other in exported declared; do
    diff -u "$work/listed" "$work/$other" || {
        echo "src/libspile.sym (-) and what is $other (+) differ" >&2
        failed=1
    }
done
[ -s "$work/listed" ] || failed=1
exit $failed
