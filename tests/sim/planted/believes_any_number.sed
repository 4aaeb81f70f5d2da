/^static bool reading_take/,/^}/ s/if (!algorithm->reading_valid/if (spec == NULL \&\& !algorithm->reading_valid/
