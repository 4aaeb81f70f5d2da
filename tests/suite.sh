#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs every test of a build directory and prints how many there were: suite.sh BUILD [meson test's own options].
#
# "meson test" alone says how many programs passed; a Criterion program holds many tests, so the last line here counts
# those. A test that was skipped has not passed.
set -eu
build=$1
shift

status=0
meson test -C "$build" --no-rebuild --print-errorlogs "$@" || status=1

# In the log every program has its result and what it printed; Criterion's closing line is
# "[====] Synthesis: Tested: 12 | Passing: 12 | Failing: 0 | Crashing: 0".
awk '
    function program_end() {
        if (!name)
            return
        if (result != "exit status 0" || tested != passing) {
            printf "%s: not passed (%s)\n", name, result
            failed += tested > passing ? tested - passing : 1
        }
        if (tested)
            printf "%s: %s\n", name, closing
        passed += tested ? passing : result == "exit status 0"
        name = ""
    }
    /^test: / { program_end(); name = $0; sub(/^test: +/, "", name); tested = passing = 0; result = "" }
    /^result: / { result = $0; sub(/^result: +/, "", result) }
    /Synthesis: / {
        gsub(/\033\[[0-9;]*m/, "")
        closing = $0
        match($0, /Tested: [0-9]+/); tested += substr($0, RSTART + 8, RLENGTH - 8)
        match($0, /Passing: [0-9]+/); passing += substr($0, RSTART + 9, RLENGTH - 9)
    }
    END {
        program_end()
        printf "%d passed, %d failed\n", passed, failed
        exit failed > 0 || passed == 0
    }
' "$build/meson-logs/testlog.txt" || status=1
exit $status
