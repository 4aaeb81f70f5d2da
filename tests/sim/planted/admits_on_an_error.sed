/^static bool reading_take/,/^}/ s/if (reply->type != REDIS_REPLY_INTEGER)/if (reply->type != REDIS_REPLY_INTEGER \&\& reply->type != REDIS_REPLY_ERROR)/
