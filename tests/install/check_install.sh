#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the build into a directory of its own and uses it from there, as a stranger would: a C and a C++ program
# found through pkg-config, against the shared and the static library: check_install.sh ROOT BUILD PREFIX STORE.
set -eu
root=$1
build=$2
prefix=$3
store=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$work/destination" >/dev/null
installed=$work/destination$prefix
pc=$(find "$installed" -name spile.pc)
[ -n "$pc" ] || {
    echo "spile.pc is not installed" >&2
    exit 1
}
# The prefix is where the files lie now; and nothing of the source tree may be needed.
config() {
    PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$installed" "$@" spile
}
libraries=$(config --variable=libdir)
warnings='-Wall -Wextra -Werror'
[ "$store" != lmdb: ] || store=lmdb:$work/store

# Runs a program and looks for the answers that the limit gives: three, then none.
check() {
    out=$("$@") || {
        echo "failed ($?): $*" >&2
        exit 1
    }
    echo "$out" | grep -q 'allowed, 2 left' && echo "$out" | grep -q 'denied, try again in [0-9]* ms' || {
        printf 'wrong answers from %s:\n%s\n' "$1" "$out" >&2
        exit 1
    }
    rm -rf "$work/store"
    echo "ok: $1"
}

cd "$work"
cp "$root/docs/examples/readme.c" program.c
cp "$root/tests/install/program.cc" program.cc
static=$(config --static --libs | sed 's/-lspile/-l:libspile.a/')

gcc -std=c11 $warnings $(config --cflags) program.c -o c-shared $(config --libs)
g++ -std=c++17 $warnings $(config --cflags) program.cc -o cc-shared $(config --libs)
gcc -std=c11 $warnings $(config --cflags) program.c -o c-static $static
g++ -std=c++17 $warnings $(config --cflags) program.cc -o cc-static $static
export LD_LIBRARY_PATH="$libraries"
for program in c-shared c-static cc-shared cc-static; do
    check "./$program" "$store"
done
if ldd c-static | grep -q libspile || ! ldd c-shared | grep -q "$libraries/libspile.so.0"; then
    echo 'static and shared are mixed up' >&2
    exit 1
fi

version=$(config --modversion)
if [ -x "$installed/bin/spile" ]; then
    said=$("$installed/bin/spile" --version)
    [ "$said" = "spile $version" ] || {
        echo "the command is '$said', pkg-config says $version" >&2
        exit 1
    }
fi
