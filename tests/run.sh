#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds in build-tests/ and runs every test; fails if one fails or is skipped.
# Words after the script's name go to "meson setup" when the directory is made.
set -eu
cd "$(dirname "$0")/.."

sh tests/setup.sh test
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo 'building in build-tests/'
{
    { [ -f build-tests/build.ninja ] || meson setup build-tests -Dredis=enabled -Dlmdb=enabled -Dlimits=enabled -Dtests=enabled "$@"; } &&
        ninja --quiet -C build-tests
} >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
sh tests/suite.sh build-tests
