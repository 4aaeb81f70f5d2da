#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The README shows what is: its C program is readme.c, its transcripts what http_tour.sh (where there is a server)
# and tour.sh print now, its first two commands are there: check_readme.sh ROOT DIRECTORY-OF-SPILE [HTTP-SERVER].
set -eu
root=$1
directory=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the n-th block of README.md that is fenced with a word.
block() {
    awk -v fence="\`\`\`$1" -v n="$2" '
        inside && $0 == "```" { exit }
        inside { print }
        $0 == fence && ++seen == n { inside = 1 }
    ' "$root/README.md"
}
# How long a wait is and how full a bucket is differ by milliseconds from run to run.
durations_blank() {
    sed -E -e 's/([0-9]+ (d|h|min) )*[0-9]+(\.[0-9]+)? s\b/TIME/g' -e 's/_ms":[0-9]+/_ms":TIME/g' \
        -e 's/in ([0-9]+ (d|h|min)( |$))+/in TIME/g'
}
failed=0
same() {
    diff -u "$2" "$3" || {
        echo "$1" >&2
        failed=1
    }
}

block c 1 >"$work/program.c"
sed '1,/^ \*\/$/d' "$root/docs/examples/readme.c" >"$work/readme.c"
same 'the program in README.md (-) is not docs/examples/readme.c (+)' "$work/program.c" "$work/readme.c"

# What else depends on the moment in an answer: the clock, and tokens that came back meanwhile.
moments_blank() {
    sed -E -e 's/^(Date|Retry-After|X-RateLimit-Reset): .*/\1: TIME/' -e 's/;t=[0-9]+/;t=TIME/g' -e 's/(#global";r=)[0-9]+/\1N/'
}
if [ $# -gt 2 ]; then
    block console 1 | moments_blank >"$work/shown"
    [ -s "$work/shown" ] || failed=1
    sh "$root/docs/examples/http_tour.sh" "$3" | moments_blank >"$work/printed"
    same 'the transcript in README.md (-) is not what docs/examples/http_tour.sh prints (+)' "$work/shown" "$work/printed"
fi

block console 2 | durations_blank >"$work/shown"
sh "$root/docs/examples/tour.sh" "$directory" | sed 1d | durations_blank >"$work/printed"
same 'the transcript in README.md (-) is not what docs/examples/tour.sh prints (+)' "$work/shown" "$work/printed"

block console 3 >"$work/shown"
{
    echo '$ spile check tests/data/limits/faults.json 2>&1 | head -n 2'
    (cd "$root" && "$directory/spile" check tests/data/limits/faults.json 2>&1 | head -n 2) || true
} >"$work/printed"
same 'the faults in README.md (-) are not what spile check prints (+)' "$work/shown" "$work/printed"

for n in 1 2; do
    script=$(block sh $n | sed -n 's/^sh \([a-z_/]*\.sh\)$/\1/p')
    [ -n "$script" ] && [ -f "$root/$script" ] || {
        echo "sh block $n of README.md is not one script of this repository" >&2
        failed=1
    }
done
[ -s "$work/program.c" ] && [ -s "$work/shown" ] || failed=1
exit $failed
