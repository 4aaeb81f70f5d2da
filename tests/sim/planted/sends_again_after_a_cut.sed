s/result == SPILE_OK || talk.sent || result == SPILE_ENOMEM/result == SPILE_OK/
