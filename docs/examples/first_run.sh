#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# From a fresh clone on Debian 12 to decisions: installs what the build needs (root or sudo), builds in build/, and
# shows the command at work (tour.sh).
set -eu
cd "$(dirname "$0")/../.."

sh tests/setup.sh build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo 'building in build/'
{
    { [ -f build/build.ninja ] || meson setup build -Dtests=disabled; } && ninja --quiet -C build
} >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
sh docs/examples/tour.sh "$PWD/build/src/cli"
printf '\nThe command is build/src/cli/spile; README.md tells how to install it and the library.\n'
