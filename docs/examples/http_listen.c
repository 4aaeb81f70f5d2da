/* SPDX-License-Identifier: Apache-2.0 */
#include "http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* @return false: it is not a number from 0 to 65535 */
static bool port_read(const char *text, in_port_t *out) {
  char *end;
  unsigned long port = strtoul(text, &end, 10);
  *out = htons((uint16_t)port);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0' && port <= 65535;
}

int listen_on(const char *address) {
  struct sockaddr_un local = {.sun_family = AF_UNIX};
  struct sockaddr_in inet = {.sin_family = AF_INET};
  bool is_unix = strncmp(address, "unix:", 5) == 0;
  const char *colon = strrchr(address, ':');
  char host[INET_ADDRSTRLEN] = "";
  bool port = false;
  if (is_unix && strlen(address + 5) < sizeof(local.sun_path)) {
    memcpy(local.sun_path, address + 5, strlen(address + 5));
  } else if (!is_unix && colon != NULL && (size_t)(colon - address) < sizeof(host)) {
    memcpy(host, address, (size_t)(colon - address));
    port = port_read(colon + 1, &inet.sin_port);
  }
  if (is_unix ? local.sun_path[0] == '\0' : !port || inet_pton(AF_INET, host, &inet.sin_addr) != 1) {
    fprintf(stderr, "-l %s: write HOST:PORT with an IPv4 address and a port up to 65535, or unix:PATH\n", address);
    return -1;
  }
  socklen_t len = is_unix ? sizeof(local) : sizeof(inet);
  struct sockaddr *name = is_unix ? (struct sockaddr *)&local : (struct sockaddr *)&inet;
  int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
  if (fd < 0 || bind(fd, name, len) != 0 || listen(fd, 1024) != 0 ||
      (!is_unix && getsockname(fd, (struct sockaddr *)&inet, &len) != 0)) {
    fprintf(stderr, "cannot listen on %s: %s\n", address, strerror(errno));
    return -1;
  }
  if (is_unix)
    printf("listening on %s\n", address);
  else
    printf("listening on %s:%u\n", host, (unsigned)ntohs(inet.sin_port));
  return fd;
}
