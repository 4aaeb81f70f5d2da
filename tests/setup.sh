#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that a purpose needs, and only those that are missing: setup.sh build|test|ci.
# Needs root or sudo only when something is missing. Prints one line, and apt's own words when it fails.
set -eu

build='gcc libc6-dev meson ninja-build pkg-config liblmdb-dev libhiredis-dev zlib1g-dev libjansson-dev'
# g++: the headers promise C++17 too. locales: numbers are read the same in one that writes 0,05. redis-server: the Redis store is tested on a real one.
test="$build libsodium-dev g++ libcriterion-dev redis-server locales"
# The example server, its clients and the gateway before it.
http='libmicrohttpd-dev curl wrk nginx'
ci="$test $http ccache clang clang-format libclang-rt-14-dev git"

case "${1-}" in
build) wanted=$build ;;
test) wanted=$test ;;
ci) wanted=$ci ;;
*)
    echo "usage: setup.sh build|test|ci" >&2
    exit 2
    ;;
esac

missing=''
for package in $wanted; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=''
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "setup.sh: run this as root, or install:$missing" >&2
        exit 1
    }
    as_root=sudo
fi

echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# RUNLEVEL=1 keeps Debian from starting the installed Redis where no systemd runs: the tests start their own.
install() {
    $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -q -y --no-install-recommends install $missing </dev/null >"$log" 2>&1
}
# The package lists may be absent or old: they are fetched only when the packages cannot be had without.
install || {
    $as_root apt-get -q update </dev/null >"$log" 2>&1 && install
} || {
    cat "$log" >&2
    echo "setup.sh: could not install$missing" >&2
    exit 1
}
