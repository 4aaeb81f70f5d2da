s/if (talk->sent && !talk->greeting)/if (talk->sent \&\& talk->greeting)/
s/if (!spile__redis_buffer_reserve(link->env, &link->in, 1))/if (!spile__redis_buffer_reserve(link->env, \&link->in, 4096))/
