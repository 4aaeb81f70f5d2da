#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The example server as its clients see it, with curl and wrk as clients: server.sh SERVER WHAT [NGINX], where WHAT is one of
# the functions below that begin with "it_". Everything it starts listens on a loopback port that the kernel chose or on a
# UNIX socket, and is ended by its process id.
set -eu
server=$1
nginx_program=${3-nginx}
here=$(cd "$(dirname "$0")" && pwd)
examples=$here/../../docs/examples
work=$(mktemp -d)
pids=''
nginx=''
# What is left when something fails.
cleanup() {
    # Its workers outlive a master that is killed.
    [ -z "$nginx" ] || { kill -TERM "$nginx" && wait "$nginx"; } 2>/dev/null || true
    for pid in $pids; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $1" >&2
    for file in "$work"/*.err "$work"/head "$work"/wrk; do
        [ -s "$file" ] && { echo "-- ${file##*/}"; tail -n 30 "$file"; } >&2
    done
    exit 1
}
# same WHAT GOT WANTED
same() {
    [ "$2" = "$3" ] || fail "$1: $2, not $3"
}
# waits up to 30 s for a command to succeed: until_true WHAT COMMAND...
until_true() {
    what=$1
    shift
    for poll in $(seq 600); do
        if "$@"; then
            return 0
        fi
        sleep 0.05
    done
    fail "$what: not within 30 s"
}

# Starts the server and waits until it answers; sets $address and $pid.
start() {
    : >"$work/server.out"
    "$server" -l 127.0.0.1:0 "$@" >"$work/server.out" 2>"$work/server.err" &
    pid=$!
    pids="$pids $pid"
    until_true 'the server listens' grep -q '^listening on ' "$work/server.out"
    address=http://$(sed -n 's/^listening on //p' "$work/server.out")
    until_true 'the server answers' answers
}
answers() {
    curl -s -o /dev/null --max-time 2 "$address/health"
}
# Ends it as a supervisor does. A sanitizer's report is an exit status.
stop() {
    kill -TERM "$pid"
    status=0
    wait "$pid" || status=$?
    same 'the exit status of the server' "$status" 0
}

# post PATH [options of curl]: the status; headers are in $work/head, the body in $work/body.
post() {
    path=$1
    shift
    curl -s -X POST -D "$work/head" -o "$work/body" -w '%{http_code}' --max-time 20 "$@" "$address$path"
}
header() {
    tr -d '\r' <"$work/head" | sed -n "s/^$1: //p"
}
# Statuses of N requests in a row, as "20x200 1x429".
posts() {
    n=$1
    shift
    for i in $(seq "$n"); do
        post "$@"
        echo
    done | uniq -c | awk '{ printf "%s%dx%s", (NR > 1 ? " " : ""), $1, $2 }'
}
# load SECONDS PATH: wrk in the background; load_end waits for it and reads s200, s429, s503, other and errors.
load() {
    wrk -t 2 -c 16 --timeout 20s -d "$1" -s "$here/count.lua" "$address$2" >"$work/wrk" 2>&1 &
    load_pid=$!
    pids="$pids $load_pid"
}
load_end() {
    wait "$load_pid" || fail 'wrk failed'
    eval "$(grep -E '^(s200|s429|s503|other|errors)=[0-9.]+$' "$work/wrk" | sed 's/\..*//')"
}

limits() {
    cat >"$work/limits.json"
}

a_day_or_less() {
    { [ "$1" -gt 86300 ] && [ "$1" -le 86400 ]; } || fail "Retry-After: $1, not about 86400"
}
it_answers_a_burst_as_the_file_says() {
    # What a burst leaves does not depend on how long it took.
    sed -e 's|"1/2s"|"1/d"|' -e 's|"1/20s"|"1/d"|' -e 's|"1/m"|"1/d"|' "$examples/limits.json" | limits
    start -f "$work/limits.json" -k "$examples/accounts.txt"
    same 'a burst of 21' "$(posts 21 /search)" '20x200 1x429'
    a_day_or_less "$(header Retry-After)"
    same 'X-RateLimit-Limit' "$(header X-RateLimit-Limit)" 20
    same 'X-RateLimit-Remaining' "$(header X-RateLimit-Remaining)" 0
    same 'Content-Type' "$(header Content-Type)" application/problem+json
    same 'Cache-Control' "$(header Cache-Control)" no-store
    header RateLimit | grep -q '^"POST /search";r=0;t=' || fail 'RateLimit'
    grep -q '"status":429,"violated-policies":\["POST /search"\]' "$work/body" || fail 'the body of a 429'
    same 'one export costs all five' "$(posts 2 /export)" '1x200 1x429'
    [ "$(header Retry-After)" -gt 431900 ] || fail "Retry-After of an export: $(header Retry-After), not 5 days"
    same 'another route is another bucket' "$(posts 1 /nothing)" 1x404
    same 'X-RateLimit-Limit of an anonymous caller' "$(header X-RateLimit-Limit)" 30

    # Tiers by API key. A key that nobody has is no bucket of its own.
    same 'a key of tier pro' "$(posts 1 /search -H 'X-Api-Key: k-acme-1')" 1x200
    same 'its X-RateLimit-Limit' "$(header X-RateLimit-Limit)" 100
    same 'an invented key' "$(posts 1 /search -H 'X-Api-Key: k-acme-2')" 1x429
    same 'a client that a trusted proxy names' "$(posts 1 /search -H 'X-Forwarded-For: 203.0.113.9')" 1x200

    same 'logins' "$(posts 3 /login)" 3x200
    same 'resets take from the bucket of logins' "$(posts 3 /reset)" '2x200 1x429'
    same '/health is not limited' "$(curl -s -D "$work/head" -o /dev/null -w '%{http_code}' "$address/health")" 200
    same 'and says nothing of limits' "$(header X-RateLimit-Limit)" ''
    same 'denied takes on /metrics' "$(curl -s "$address/metrics" | sed -n 's/^spile_takes_total{.*"denied".*} //p')" 4
    stop
}

it_lets_a_client_by_after_exactly_retry_after() {
    limits <<'EOF'
{ "on_store_error": "open", "limits": { "default": { "capacity": 1, "refill": "1/s", "key": ["ip"] } } }
EOF
    start -f "$work/limits.json"
    until_true 'a request is refused' is_refused
    wait_s=$(header Retry-After)
    same 'Retry-After' "$wait_s" 1
    sleep "$wait_s"
    same 'after Retry-After' "$(post /)" 404
    stop
}
is_refused() {
    [ "$(post /)" = 429 ]
}

redis_start() {
    redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work" --save '' --appendonly no --daemonize no \
        --loglevel warning >"$work/redis.err" 2>&1 &
    redis=$!
    pids="$pids $redis"
    until_true 'redis-server answers' redis_answers
}
redis_answers() {
    [ "$(redis-cli -s "$work/redis.sock" ping 2>/dev/null)" = PONG ]
}
it_serves_open_routes_and_closes_others_while_redis_is_dead() {
    limits <<'EOF'
{ "on_store_error": "open", "timeout_ms": 1000, "key": ["ip"],
  "named": { "login": { "capacity": 1000000, "refill": "1/m", "on_store_error": "closed" } },
  "limits": { "default": { "capacity": 1000000, "refill": "1/s" }, "POST /login": "login" } }
EOF
    redis_start
    start -f "$work/limits.json" -s "redis+unix://$work/redis.sock"
    same 'a login' "$(post /login)" 200
    load 2s /search
    sleep 0.5
    kill -KILL "$redis"
    wait "$redis" 2>/dev/null || true
    same 'an open route under load, without a store' "$(post /search)" 200
    same 'its X-RateLimit-Limit' "$(header X-RateLimit-Limit)" ''
    same 'a closed route' "$(post /login)" 503
    same 'its Retry-After' "$(header Retry-After)" ''
    load_end
    same 'answers that are none of the limits' "$other" 0
    same 'connections that failed' "$errors" 0
    same 'refused on an open route' "$((s429 + s503))" 0
    [ "$s200" -gt 100 ] || fail "only $s200 requests were served"
    curl -s "$address/metrics" >"$work/metrics"
    grep -q 'spile_policy_answers_total{answer="open"} [1-9]' "$work/metrics" || fail 'no policy answer was counted as open'
    grep -q 'spile_policy_answers_total{answer="closed"} [1-9]' "$work/metrics" || fail 'no policy answer was counted as closed'
    redis_start
    until_true 'the store decides again' store_decides
    stop
    kill -TERM "$redis"
    wait "$redis" 2>/dev/null || true
}
store_decides() {
    [ "$(post /login)" = 200 ] && [ -n "$(header X-RateLimit-Limit)" ]
}

# A process that is told twice before it looks may read once, so each is waited for.
exchanges_limits_under_load_and_keeps_good_ones() {
    processes=$1
    shift
    file() {
        printf '{ "on_store_error": "open", "limits": { "default": { "capacity": %s, "refill": "1/s", "key": ["ip"] } } }\n' \
            "$1" >"$work/new"
        mv "$work/new" "$work/limits.json"
    }
    file 1000000
    start -f "$work/limits.json" "$@"
    load 2s /search
    for i in 1 2 3 4 5 6 7 8; do
        file "$((1000000 + i))"
        kill -HUP "$pid"
        until_true "the limits are exchanged ($i)" said 'limits: read again' $((i * processes))
        post /search >/dev/null
        same 'the capacity of an exchanged file' "$(header X-RateLimit-Limit)" $((1000000 + i))
    done
    file '"many"'
    kill -HUP "$pid"
    until_true 'the fault is reported' said 'limits: those before stay in force' "$processes"
    grep -q 'limits.json:1:[0-9]*: limits.default.capacity: ' "$work/server.err" || fail 'the fault has no place'
    same 'a request under the limits before' "$(post /search)" 200
    same 'their capacity' "$(header X-RateLimit-Limit)" 1000008
    load_end
    same 'answers that are not 200' "$((s429 + s503 + other))" 0
    same 'connections that failed' "$errors" 0
    file 5
    kill -HUP "$pid"
    until_true 'the repaired file is taken' said 'limits: read again' $((9 * processes))
    post /search >/dev/null
    same 'the capacity of the repaired file' "$(header X-RateLimit-Limit)" 5
    stop
}
# said LINE TIMES
said() {
    [ "$(grep -c "^$1\$" "$work/server.err")" -ge "$2" ]
}
it_exchanges_limits_under_load_and_keeps_good_ones() {
    exchanges_limits_under_load_and_keeps_good_ones 1
}

# Sixteen connections at once, far more requests than tokens, a token a day.
stays_within_a_limit_exactly() {
    limits <<'EOF'
{ "on_store_error": "open", "timeout_ms": 10000, "key": ["ip"],
  "skip": [{ "route": "GET /health" }], "limits": { "default": { "capacity": 100, "refill": "1/d" } } }
EOF
    start -f "$work/limits.json" "$@"
    load 1s /search
    load_end
    same 'admitted' "$s200" 100
    same 'neither admitted nor refused' "$((s503 + other))" 0
    [ "$s429" -ge 100 ] || fail "only $s429 requests were refused: too few to tell"
    stop
}
it_stays_within_the_limit_with_threads_over_memory() {
    stays_within_a_limit_exactly -t 4
}
it_stays_within_the_limit_with_prefork_workers_over_lmdb() {
    stays_within_a_limit_exactly -w 4 -t 1 -s "lmdb:$work/store"
}
it_hands_a_reload_to_all_prefork_workers() {
    exchanges_limits_under_load_and_keeps_good_ones 2 -w 2 -t 1 -s "lmdb:$work/store"
}

it_remembers_accounts() {
    printf 'k1 acme free\n' >"$work/accounts"
    start -f "$examples/limits.json" -k "$work/accounts"
    post /search -H 'X-Api-Key: k1' >/dev/null
    same 'X-RateLimit-Limit of tier free' "$(header X-RateLimit-Limit)" 20
    printf 'k1 acme pro\n' >"$work/accounts"
    post /search -H 'X-Api-Key: k1' >/dev/null
    same 'X-RateLimit-Limit for 300 s more' "$(header X-RateLimit-Limit)" 20
    stop
    start -f "$examples/limits.json" -k "$work/accounts" -c 0
    post /search -H 'X-Api-Key: k1' >/dev/null
    same 'X-RateLimit-Limit of tier pro' "$(header X-RateLimit-Limit)" 100
    printf 'k1 acme free\n' >"$work/accounts"
    post /search -H 'X-Api-Key: k1' >/dev/null
    same 'X-RateLimit-Limit where nothing is remembered' "$(header X-RateLimit-Limit)" 20
    stop
}

# The exit status of a process that should end, or that it listens.
ends_by_itself() {
    for poll in $(seq 600); do
        if grep -q '^listening on ' "$work/server.out"; then
            fail "it listens: $(cat "$work/server.out")"
        fi
        kill -0 "$1" 2>/dev/null || break
        sleep 0.05
    done
    wait "$1"
}

# Starts the server with a wrong command line.
refuses() {
    status=0
    "$server" "$@" >"$work/server.out" 2>"$work/server.err" </dev/null &
    server_pid=$!
    pids="$pids $server_pid"
    ends_by_itself "$server_pid" || status=$?
    same "the exit status of $*" "$status" 2
}

it_refuses_to_start_wrongly() {
    limits <<'EOF'
{ "limits": { "default": { "capacity": 0, "refill": "1/s" }, "POST /serach": "lgoin" } }
EOF
    status=0
    "$server" -l 127.0.0.1:0 -f "$work/limits.json" >/dev/null 2>"$work/server.err" || status=$?
    same 'the exit status with a bad file' "$status" 2
    grep -q 'limits.default.capacity' "$work/server.err" || fail 'the first fault is not told'
    grep -q 'lgoin' "$work/server.err" || fail 'the second fault is not told'
    status=0
    "$server" -l 127.0.0.1:0 -f "$examples/limits.json" -s memory: -w 2 2>"$work/server.err" || status=$?
    same 'the exit status with workers over memory' "$status" 2
    status=0
    "$server" -l 127.0.0.1:0 -w 2 -s "lmdb:$work/store" -f "$work/none.json" >/dev/null 2>"$work/server.err" || status=$?
    same 'the exit status of a server whose workers cannot start' "$status" 2
    for address in 127.0.0.1:99999 127.0.0.1:65536 127.0.0.1:-1 127.0.0.1: 127.0.0.1:80x 127.0.0.1 localhost:0 unix:; do
        refuses -l "$address"
        grep -q -- "^-l $address: write HOST:PORT" "$work/server.err" || fail "-l $address: no advice"
    done
    for accounts in "$work/none" "$work"; do
        refuses -l 127.0.0.1:0 -k "$accounts"
        grep -q -- "^-k $accounts: the accounts cannot be read: " "$work/server.err" || fail "-k $accounts: no reason"
    done
}

it_tells_its_options() {
    "$server" --help >"$work/help" 2>"$work/server.err" || fail "the exit status of --help is $?"
    same 'what --help says on standard error' "$(cat "$work/server.err")" ''
    for option in f s l k c t w; do
        same "lines of --help for -$option" "$(grep -c "^  -$option [A-Z]" "$work/help")" 1
    done
    "$server" -h | cmp - "$work/help" || fail '-h says another thing than --help'
    for wrong in --wrong -x -f '-t 0' '-c 1x' '-w 65' 'word' '-w 2'; do
        status=0
        "$server" $wrong >"$work/server.out" 2>"$work/server.err" || status=$?
        same "the exit status of http_server $wrong" "$status" 2
        grep -q '^  -f FILE ' "$work/server.err" || fail "http_server $wrong does not tell the usage"
        same "what http_server $wrong says on standard output" "$(cat "$work/server.out")" ''
    done
}

# nginx listens on an address of 127.0.0.0/8 that most likely nobody has, as it cannot say which port it was given.
gateway_start() {
    for try in 1 2 3 4 5; do
        gateway=127.$(od -An -N3 -tu1 /dev/urandom | awk '{ printf "%d.%d.%d", $1 % 250 + 2, $2, $3 % 250 + 2 }'):18088
        sed -e "s|server 127.0.0.1:8080;|server ${address#http://};|" -e "s|server 127.0.0.1:8000;|server unix:$work/site;|" \
            -e "s|listen 127.0.0.1:8088;|listen $gateway;|" -e 's|^worker_processes .*|worker_processes 2;|' \
            "$examples/nginx.conf" | sed '$d' >"$work/nginx.conf"
        cat >>"$work/nginx.conf" <<EOF
    client_body_temp_path $work/body_temp; proxy_temp_path $work/proxy_temp; fastcgi_temp_path $work/fastcgi_temp;
    uwsgi_temp_path $work/uwsgi_temp; scgi_temp_path $work/scgi_temp;
    server {
        listen unix:$work/site;
        location / { return 200 "the site\n"; }
        location = /secret { return 403 "the site says no\n"; }
        location = /broken { return 500 "the site is broken\n"; }
    }
}
EOF
        [ "$(id -u)" -ne 0 ] || sed -i '1i user root;' "$work/nginx.conf"
        "$nginx_program" -p "$work" -e "$work/nginx.err" -c "$work/nginx.conf" -g 'daemon off;' >>"$work/nginx.err" 2>&1 &
        nginx=$!
        for i in $(seq 600); do
            if curl -s -o /dev/null --max-time 2 "http://$gateway/"; then
                return 0
            fi
            kill -0 "$nginx" 2>/dev/null || break
            sleep 0.05
        done
        kill -TERM "$nginx" 2>/dev/null || true
        wait "$nginx" || true
        nginx=''
    done
    fail 'nginx does not start'
}
# word BYTES
word() {
    head -c "$1" /dev/zero | tr '\0' a
}
# Whatever nginx and the site take the limiter takes.
asks_with_what_the_limiter_needs() {
    cookie=$(word 1900 | sed 's/a/c=d;/g')
    same 'a large cookie' "$(post /other -H "Cookie: $cookie")" 200
    header RateLimit | grep -q '^"default";r=' || fail 'RateLimit with a large cookie'
    same 'a large cookie on a blocked route' "$(post /closed -X GET -H "Cookie: $cookie")" 403
    same 'headers of 21 KB' "$(post /other -H "A: $(word 7000)" -H "B: $(word 7000)" -H "C: $(word 7000)")" 200
    for i in $(seq 600); do
        echo "header = \"A$i: b\""
    done >"$work/many"
    same '600 headers' "$(post /other -K "$work/many")" 200
    same 'a target of 8 KB' "$(post "/other?$(word 8000)")" 200
    same 'a path of 8 KB' "$(post "/$(word 8000)")" 200
    same 'one that .. takes away' "$(post "/$(word 8000)/../closed" -X GET --path-as-is)" 403
    same 'a key that is too long for an account' "$(post "/other?$(word 8000)" -H "X-Api-Key: $(word 8000)")" 200
    same 'a body where none is expected' "$(post /other -X GET -d body)" 200
    same 'a request that would have the limiter wait' "$(post /other -H 'Expect: 100-continue' -d body)" 200
    post /other -H 'X-Api-Key: k-acme-1' >/dev/null
    same 'capacity of an account' "$(header RateLimit-Policy | sed 's/.*;q=\([0-9]*\);.*/\1/')" 300
}
it_limits_a_site_behind_nginx() {
    limits <<'EOF'
{ "on_store_error": "open", "key": ["ip"], "skip": [{ "route": "GET /" }],
  "named": { "login": { "capacity": 5, "refill": "1/m", "on_store_error": "closed" } },
  "limits": { "default": { "capacity": 100, "refill": "1/s" }, "POST /search": { "capacity": 3, "refill": "1/d" },
              "POST /login": "login", "GET /closed": "blocked" },
  "tiers": { "pro": { "default": { "capacity": 300, "refill": "1/s" } } } }
EOF
    redis_start
    start -f "$work/limits.json" -s "redis+unix://$work/redis.sock" -k "$examples/accounts.txt"
    limiter_address=$address
    gateway_start
    address=http://$gateway
    same 'searches through the gateway' "$(posts 4 '/search?q=1' -d body)" '3x200 1x429'
    a_day_or_less "$(header Retry-After)"
    header RateLimit | grep -q '^"POST /search";r=0;t=' || fail 'RateLimit of a 429'
    header RateLimit-Policy | grep -q '^"POST /search";q=3;w=259200' || fail 'RateLimit-Policy of a 429'
    same 'Cache-Control of a 429' "$(header Cache-Control)" no-store
    same 'Content-Type of a 429' "$(header Content-Type)" application/json
    same 'the body of a 429' "$(cat "$work/body")" '{"error":"rate_limited"}'
    same 'another spelling of the path' "$(post '//search/?q=2')" 429
    same 'a target in absolute form' "$(post /search --request-target http://site/search)" 429
    same 'one that has a query and no path' "$(post / -X GET --request-target 'http://site?x=1')" 200
    same 'which is skipped as GET / is' "$(header RateLimit)" ''
    same 'a client that names another' "$(post /search -H 'X-Forwarded-For: 203.0.113.9')" 429
    same 'another route' "$(post /other)" 200
    same 'its body' "$(cat "$work/body")" 'the site'
    header RateLimit | grep -q '^"default";r=' || fail 'RateLimit of a 200'
    same 'Retry-After of a 200' "$(header Retry-After)" ''
    same 'a 403 of the site itself' "$(post /secret)" 403
    same 'its body' "$(cat "$work/body")" 'the site says no'
    same 'a 500 of the site itself' "$(post /broken)" 500
    same 'a blocked route' "$(curl -s -o "$work/body" -w '%{http_code}' "$address/closed")" 403
    same 'its body' "$(cat "$work/body")" '{"error":"blocked"}'
    same 'the inner location from outside' "$(post /_limits)" 404
    asks_with_what_the_limiter_needs

    kill -KILL "$redis"
    wait "$redis" 2>/dev/null || true
    same 'a closed route without a store' "$(post /login)" 503
    same 'its Retry-After' "$(header Retry-After)" ''
    same 'its body' "$(cat "$work/body")" '{"error":"unavailable"}'
    same 'an open route without a store' "$(post /search)" 200
    address=$limiter_address
    stop
    address=http://$gateway
    same 'the site without a limiter' "$(post /search)" 200
    kill -QUIT "$nginx"
    wait "$nginx" || fail 'nginx ended badly'
    nginx=''
}

"it_$2"
