/^static unsigned call_parts/,/^}/ s/if (call->verb != SPILE_VERB_PEEK)/if (call->verb == SPILE_VERB_TAKE)/
