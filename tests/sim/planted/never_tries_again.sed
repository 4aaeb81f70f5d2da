s/^  if (now_ms < breaker->until_ms)/  if (now_ms < INT64_MAX)/
