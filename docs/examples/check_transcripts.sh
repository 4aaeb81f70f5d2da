#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What the pages of docs/ show is what happens: every block fenced as "console" is run, a command from each line that
# begins with "$ ", in the root of the checkout, and must print what stands below it:
# check_transcripts.sh ROOT DIRECTORY-OF-SPILE.
set -eu
root=$1
PATH=$2:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH HOME="$work"
unset XDG_STATE_HOME SPILE_STORE || :
cd "$root"

# Writes the commands of a page to NUMBER.sh and what is shown below each to NUMBER.shown, and prints the numbers.
commands() {
    awk -v work="$work" '
        $0 == "```console" { inside = 1; next }
        inside && $0 == "```" { inside = 0; next }
        !inside { next }
        continued { print > script; continued = /\\$/; next }
        /^\$ / {
            n++
            script = work "/" n ".sh"
            shown = work "/" n ".shown"
            printf "" > shown
            print substr($0, 3) > script
            continued = /\\$/
            print n
            next
        }
        { print > shown }
    ' "$1"
}

failed=0
run=0
for page in docs/*.md; do
    for n in $(commands "$page"); do
        run=$((run + 1))
        sh "$work/$n.sh" >"$work/printed" 2>&1 </dev/null || :
        diff -u "$work/$n.shown" "$work/printed" || {
            echo "$page shows (-) another thing than this prints (+): $(cat "$work/$n.sh")" >&2
            failed=1
        }
        rm "$work/$n.sh" "$work/$n.shown"
    done
done
echo "$run commands"
[ "$run" -gt 0 ] || failed=1
exit $failed
