s/(full - debt) \/ shape->period_ms;/spile__div_ceil(full - debt, shape->period_ms);/
