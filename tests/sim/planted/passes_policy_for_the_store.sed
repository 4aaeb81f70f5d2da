s/spile_decided_by decided_by = SPILE_BY_POLICY;/spile_decided_by decided_by = SPILE_BY_STORE;/
