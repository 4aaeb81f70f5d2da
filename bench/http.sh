#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What limits cost an HTTP server: wrk against the example server without limits and with them over each store, in turn,
# round after round: http.sh SERVER [ROUNDS [SECONDS]]. A ratio is the median of the ratios within each round. The
# server's processor time is told beside the requests a second, as it depends less on what else the machine does. Every
# request meets two limits, one of its route and one of all requests; `denied` is refused by the first.
set -eu
server=$1
rounds=${2-11}
seconds=${3-1}
work=$(mktemp -d)
pids=''
cleanup() {
    for pid in $pids; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

# limits CAPACITY REFILL
limits() {
    cat <<EOF
{ "on_store_error": "closed", "timeout_ms": 1000, "key": ["ip"],
  "always": [{ "name": "all", "capacity": 1000000000, "refill": "1000000000/s" }],
  "limits": { "default": { "capacity": $1, "refill": "$2" } } }
EOF
}
limits 1000000000 1000000000/s >"$work/allowed.json"
limits 1 1/d >"$work/denied.json"
printf 'wrk.method = "POST"\n' >"$work/post.lua"

# start NAME [options of the server]: $work/NAME holds its address, $work/NAME.pid its process.
names=''
start() {
    name=$1
    shift
    : >"$work/$name.out"
    "$server" -l 127.0.0.1:0 -t 1 "$@" >"$work/$name.out" &
    pids="$pids $!"
    for i in $(seq 600); do
        ! grep -q '^listening on ' "$work/$name.out" && kill -0 $! && sleep 0.05 || break
    done
    sed -n 's|^listening on |http://|p' "$work/$name.out" >"$work/$name"
    [ -s "$work/$name" ]
    echo $! >"$work/$name.pid"
    names="$names $name"
}
# Ticks of a hundredth of a second that a server has used.
used() {
    sed 's/.*) //' "/proc/$(cat "$work/$1.pid")/stat" | awk '{ print $12 + $13 }'
}
# Requests a second, all of the status that is meant, and the server's microseconds for one.
measure() {
    before=$(used "$1")
    wrk -t 1 -c 16 --timeout 20s -d "${seconds}s" -s "$work/post.lua" "$(cat "$work/$1")/search" >"$work/wrk"
    after=$(used "$1")
    awk -v denied="$([ "$1" = denied ] && echo 1)" -v ticks=$((after - before)) '
        / requests in / { n = $1 }
        /Non-2xx/ { refused = $NF }
        /Socket errors/ { broken = 1 }
        /^Requests\/sec/ { rate = $2 }
        END {
            if (broken || n == 0 || refused < (denied ? n - 1 : 0) || refused > (denied ? n : 0))
                exit 1
            print rate, ticks * 10000 / n
        }
    ' "$work/wrk" || {
        cat "$work/wrk" >&2
        exit 1
    }
}

redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work" --save '' --appendonly no --daemonize no \
    --loglevel warning >"$work/redis.out" &
pids="$pids $!"
start none
start memory -f "$work/allowed.json" -s memory:
start denied -f "$work/denied.json" -s memory:
start lmdb -f "$work/allowed.json" -s "lmdb:$work/store"
start redis -f "$work/allowed.json" -s "redis+unix://$work/redis.sock"

echo "$(basename "$0"): $rounds rounds of $seconds s, wrk -t 1 -c 16, one server thread, $(nproc) processors"
for round in $(seq "$rounds"); do
    for name in $names; do
        rate=$(measure "$name")
        [ -n "$rate" ]
        echo "$round $name $rate"
    done
done >"$work/samples"
awk '
    function median(values, n,   i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
                t = values[j]; values[j] = values[j - 1]; values[j - 1] = t
            }
        return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
    }
    !($2 in seen) { seen[$2] = 1; order[++count] = $2 }
    { sample[$1, $2] = $3; cost[$1, $2] = $4; rounds = $1 }
    END {
        printf "%-8s %12s %8s %16s %8s\n", "limits", "requests/s", "/ none", "us of the server", "/ none"
        for (i = 1; i <= count; i++) {
            for (r = 1; r <= rounds; r++) {
                rates[r] = sample[r, order[i]]
                rate_ratios[r] = sample[r, order[i]] / sample[r, "none"]
                costs[r] = cost[r, order[i]]
                cost_ratios[r] = cost[r, order[i]] / cost[r, "none"]
            }
            printf "%-8s %12.0f %7.2fx %16.1f %7.2fx\n", order[i], median(rates, rounds), median(rate_ratios, rounds),
                median(costs, rounds), median(cost_ratios, rounds)
        }
    }
' "$work/samples"
