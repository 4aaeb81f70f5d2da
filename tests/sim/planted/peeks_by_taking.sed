s/int64_t cost = call->verb == SPILE_VERB_TAKE ? .*/int64_t cost = call->items[i].cost > shape->capacity ? 0 : call->items[i].cost;/
