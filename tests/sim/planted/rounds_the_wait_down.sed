s/out->retry_after_ms = spile__div_ceil(/out->retry_after_ms = spile__div_floor(/
