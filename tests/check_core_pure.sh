#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The core has no clock, allocation, input, output, locale or globals: check_core_pure.sh ROOT libspile-core.a.
# Shown three ways: what it leaves for others to define, what it keeps in writable memory, and that it compiles where
# only freestanding headers are in reach.
set -eu
root=$1
archive=$2
failed=0

complain() {
    echo "$1" >&2
    failed=1
}

undefined=$(nm -P -u "$archive" | awk 'NF >= 2 { print $1 }' | sort -u)
[ -n "$undefined" ] || complain "$archive leaves nothing undefined, not even memcpy: is it the core?"
defined=$(nm -P --defined-only "$archive" | awk 'NF >= 2 { print $1 }')
for symbol in $undefined; do
    case $symbol in
    memcpy | memmove | memset | memcmp | memchr | strlen | strchr) ;;
    # The same with the size of the target checked (_FORTIFY_SOURCE), and the smashed stack's end.
    __memcpy_chk | __memmove_chk | __memset_chk | __stack_chk_fail) ;;
    # The compiler's own arithmetic on 128 bits, and the linker's table for position independent code.
    __udivti3 | __umodti3 | __divti3 | __modti3 | __multi3 | __muloti4 | __udivmodti4 | _GLOBAL_OFFSET_TABLE_) ;;
    *)
        echo "$defined" | grep -qx "$symbol" || complain "the core uses $symbol"
        ;;
    esac
done

# Types of nm: B, b, C and S are zeroed, D, d and G are other writable data; .data.rel.ro, read-only once the loader
# has filled in addresses, is "d" too and is told apart by its section.
for symbol in $(nm -P --defined-only "$archive" | awk '$2 ~ /^[BbCcSsG]$/ { print $1 }'); do
    complain "the core has the global variable $symbol"
done
sizes=$(objdump -h "$archive" | awk '$2 ~ /^\.(data|bss|tdata|tbss)(\.|$)/ && $2 !~ /^\.data\.rel\.ro/ && $3 !~ /^0+$/ { print $2 }')
[ -z "$sizes" ] || complain "the core has writable data: $sizes"

for compiler in gcc clang; do
    command -v "$compiler" >/dev/null || continue
    own=$("$compiler" -print-file-name=include)
    for source in "$root"/src/core/*.c; do
        "$compiler" -std=c11 -ffreestanding -nostdinc -isystem "$own" -isystem "$root/tests/freestanding" \
            -I"$root/include" -I"$root/src" -Wall -Wextra -Werror -fsyntax-only "$source" ||
            complain "$source does not compile freestanding with $compiler"
    done
done
exit $failed
