s/if (report->code == SPILE_OK \&\& report->charged)/if (report->code == SPILE_OK)/
