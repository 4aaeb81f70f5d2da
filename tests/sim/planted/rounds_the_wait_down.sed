s/out->retry_after_ms = refill_ms(shape, \(.*\));/out->retry_after_ms = (\1) \/ shape->refill;/
