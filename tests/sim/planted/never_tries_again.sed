s/&& now_ms < until_ms)/\&\& until_ms != INT64_MIN)/
