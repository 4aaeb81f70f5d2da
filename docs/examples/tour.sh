#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tour of the command, with every line shown before it runs: tour.sh DIRECTORY-OF-SPILE.
# Its buckets live in an LMDB store of its own, which is gone when it ends.
set -eu
PATH=$1:$PATH
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
SPILE_STORE=lmdb:$work/store
export PATH SPILE_STORE

say() {
    printf '\n# %s\n' "$1"
}
# Shows a command and runs it. 1 is the answer "denied"; more than that is a failure of ours.
run() {
    printf '$ %s\n' "$1"
    status=0
    eval "$1" || status=$?
    [ "$status" -le 1 ] || exit "$status"
}

say 'Three at once, then one every 10 seconds. Each take is a process of its own; the bucket lies in LMDB.'
for i in 1 2 3 4; do
    run 'spile take alice --limit 1/10s,capacity=3'
done

say 'The same answer for programs.'
run 'spile take alice --limit 1/10s,capacity=3 --json'

say 'Wait exactly as long as the denial would say.'
run 'spile take --wait job --limit 2/s,capacity=1'
run 'spile take --wait job --limit 2/s,capacity=1'

say 'Two limits, all or nothing: the second denies, so the first is not charged either.'
run 'spile take bob --cost 2 --limit 100/h,name=hour --limit 3/d,name=day'
run 'spile take bob --cost 2 --limit 100/h,name=hour --limit 3/d,name=day'
run 'spile peek bob --limit 100/h,name=hour'

say 'Twenty processes at the same time, five tokens.'
run 'for i in $(seq 20); do spile take door --limit 1/h,capacity=5 & done | cut -d: -f1 | sort | uniq -c'

say 'What is stored about bob.'
run 'spile show bob'

say 'What a limit would have done to 5,000 requests of a real web server.'
run 'spile replay --limit 1/2s,capacity=5 --top 3 tests/data/access.log'
