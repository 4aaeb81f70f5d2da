/^static bool reading_take/,/^}/ s/if (!spile__algorithm_get/if (spec == NULL \&\& !spile__algorithm_get/
