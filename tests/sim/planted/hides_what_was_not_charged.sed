s/uncharged = own > uncharged ? own : uncharged;/uncharged = own > 1 ? uncharged : own;/
