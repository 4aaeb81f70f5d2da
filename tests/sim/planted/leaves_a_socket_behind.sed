/^static int link_connect_peer/,/^}/ s/    link->transport->close(link->transport_user, handle);/    link->handle = -1;/
