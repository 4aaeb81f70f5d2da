s/bool ask_first = take \&\& charges != SPILE_BREAKER_CLOSED;/bool ask_first = take \&\& charges == 99;/
s/if (asked || refusal.part != SPILE__BREAKER_CHARGES)/if (asked || refusal.part < SPILE__BREAKER_PARTS)/
