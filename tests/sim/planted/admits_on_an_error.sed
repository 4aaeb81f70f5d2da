/^static bool reading_take/,/^}/ s/if (value->type != REDIS_REPLY_INTEGER)/if (value->type != REDIS_REPLY_INTEGER \&\& value->type != REDIS_REPLY_ERROR)/
