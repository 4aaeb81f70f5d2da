s/spile__div_ceil(reading->values\[0\], shape->refill)/spile__div_ceil(reading->values[0] + (charged ? cost * shape->period_ms : 0), shape->refill)/
