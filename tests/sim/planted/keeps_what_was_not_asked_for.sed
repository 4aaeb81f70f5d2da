s/if (result == SPILE_OK && link->in.len > 0)/if (result == SPILE_OK \&\& link->in.len > link->in.size)/
