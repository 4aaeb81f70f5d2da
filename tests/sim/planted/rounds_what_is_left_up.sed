s/level <= 0 ? 0 : level \/ shape->period_ms/level <= 0 ? 0 : spile__div_ceil(level, shape->period_ms)/
