s/return received == -EAGAIN;/return received != 0;/
