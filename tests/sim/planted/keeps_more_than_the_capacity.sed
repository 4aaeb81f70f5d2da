s/^    count = spile__window_min(count, shape->capacity);/    count += 0;/
