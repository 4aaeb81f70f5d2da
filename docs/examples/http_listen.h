/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLE_HTTP_LISTEN_H
#define EXAMPLE_HTTP_LISTEN_H

/* A socket for "HOST:PORT" (an IPv4 address; port 0: any that is free) or "unix:PATH"; says on stdout where it listens.
 * @return -1 on failure, which was reported */
int listen_on(const char *address);

#endif
