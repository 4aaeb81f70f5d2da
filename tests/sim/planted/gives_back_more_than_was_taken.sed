s/reading->values\[COUNT\] -= spile__window_min(cost, reading->values\[COUNT\]);/reading->values[COUNT] -= cost;/
