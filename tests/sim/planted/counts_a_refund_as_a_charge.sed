s/verb == SPILE_VERB_CHARGE ? &counts->charged : &counts->refunded/verb != SPILE_VERB_PEEK ? \&counts->charged : \&counts->refunded/
