#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every public header compiles alone and twice, as C11 and as C++17, without a warning: check_headers.sh ROOT.
set -eu
root=$1
flags="-I$root/include -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fsyntax-only"

checked=0
for header in $(cd "$root/include" && find spile -name '*.h' | sort); do
    text="#include <$header>
#include <$header>"
    for compiler in gcc clang; do
        command -v "$compiler" >/dev/null || continue
        echo "$text" | "$compiler" -x c -std=c11 $flags -Wstrict-prototypes -
        checked=$((checked + 1))
    done
    for compiler in g++ clang++; do
        command -v "$compiler" >/dev/null || continue
        echo "$text" | "$compiler" -x c++ -std=c++17 $flags -Wold-style-cast -
        checked=$((checked + 1))
    done
done
echo "$checked compilations"
[ "$checked" -ge 6 ]
