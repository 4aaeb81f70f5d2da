/^static int limiter_decide_failed/,/^}/ s/call->verb == SPILE_VERB_CHARGE || call->verb == SPILE_VERB_REFUND/call->n == 0/
