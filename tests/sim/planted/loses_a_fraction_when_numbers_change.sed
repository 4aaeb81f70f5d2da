s/rescale(fraction, shape->period_ms/rescale(fraction - fraction, shape->period_ms/
