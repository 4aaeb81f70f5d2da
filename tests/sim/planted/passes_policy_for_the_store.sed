/^static int decide_by_policy/,/^}/ s/SPILE_BY_POLICY/SPILE_BY_STORE/
