#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The example server under its limits file, with every line shown before it runs: http_tour.sh SERVER. It listens on a
# port that is free, whatever is shown.
set -eu
server=$(realpath "$1")
cd "$(dirname "$0")/../.."
out=$(mktemp)
"$server" -f docs/examples/limits.json -l 127.0.0.1:0 >"$out" &
pid=$!
trap 'kill $pid; wait $pid; rm -f "$out"' EXIT
trap 'exit 1' HUP INT TERM
for i in $(seq 600); do
    ! grep -q '^listening on ' "$out" && kill -0 $pid && sleep 0.05 || break
done
address=$(sed -n 's/^listening on //p' "$out")
[ -n "$address" ]

# Shows a request and its answer.
run() {
    printf '$ %s\n' "$1"
    eval "$(printf '%s\n' "$1" | sed -e "s|127.0.0.1:8080|$address|" -e 's|^curl|curl -s --max-time 20|')" | tr -d '\r'
}

echo '$ http_server -f docs/examples/limits.json -l 127.0.0.1:8080 &'
run 'curl -i -X POST 127.0.0.1:8080/export'
echo
run 'curl -i -X POST 127.0.0.1:8080/export'
echo
