s/return wait_ms <= most_ms \/ 2 ? 2 \* wait_ms : most_ms;/return wait_ms <= most_ms ? wait_ms : most_ms;/
