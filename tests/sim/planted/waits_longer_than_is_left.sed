/^static int talk_wait/,/^}/ s/writable, left_ms)/writable, left_ms + 1)/
