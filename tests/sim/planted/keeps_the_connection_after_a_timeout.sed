/^static int talk_wait/,/^}/ s/return talk_fail(link, talk, \(SPILE_REASON_TIMEOUT.*\));/return spile__store_fail(talk->error, SPILE_EUNAVAILABLE, \1);/
