s/breaker->wait_ms = breaker->wait_ms <= most_ms \/ 2 ? 2 \* breaker->wait_ms : most_ms;/breaker->wait_ms = breaker->wait_ms <= most_ms ? breaker->wait_ms : most_ms;/
