/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the server is and who we are to it.
 *
 *   redis:      [USER[:PASSWORD]@]HOST[:PORT][/DB], with an IPv6 address in brackets
 *   redis+unix: /PATH[?db=N&user=USER&password=PASSWORD]
 *
 * A part that holds one of the characters that divide an address is percent-encoded. Since an address may hold a
 * password, and a password with a forgotten %2F may stand anywhere in it, no message here quotes any of it.
 *
 * A numeric host or a path is an address and is kept as one; a name is kept for redis_names.c, which looks it up.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/address.h"
#include "backends/redis.h"

#define TCP_FORM "write redis://[USER:PASSWORD@]HOST[:PORT][/DB]"
#define UNIX_FORM "write redis+unix:///PATH[?db=N&user=USER&password=PASSWORD]"

static int address_fail(spile_error *error, const char *message) {
  return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE, "%s", message);
}

/* ---- The password from outside ---- */

static int password_read(char *out, size_t size, const char *path, spile_error *error) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t len = fd < 0 ? -1 : read(fd, out, size);
  int failure = errno;
  if (fd >= 0)
    (void)close(fd);
  if (len < 0)
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "the file named by SPILE_REDIS_PASSWORD_FILE cannot be read: %s", strerror(failure));
  if (len > 0 && out[len - 1] == '\n')
    len--;
  if (len > 0 && out[len - 1] == '\r')
    len--;
  if (len == 0 || (size_t)len == size)
    return address_fail(error, len == 0
                                   ? "the file named by SPILE_REDIS_PASSWORD_FILE is empty; write the password in it"
                                   : "the file named by SPILE_REDIS_PASSWORD_FILE holds more than a password");
  out[len] = '\0';
  if (strlen(out) != (size_t)len)
    return address_fail(error, "the file named by SPILE_REDIS_PASSWORD_FILE holds a zero byte");
  return SPILE_OK;
}

static int password_find(spile__redis_address *out, spile_error *error) {
  const char *password = getenv("SPILE_REDIS_PASSWORD");
  const char *path = getenv("SPILE_REDIS_PASSWORD_FILE");
  if (out->password[0] != '\0')
    return SPILE_OK;
  if (password != NULL && password[0] != '\0') {
    size_t len = strlen(password);
    if (len >= sizeof(out->password))
      return address_fail(error, "SPILE_REDIS_PASSWORD is too long");
    memcpy(out->password, password, len + 1);
  } else if (path != NULL && path[0] != '\0') {
    int result = password_read(out->password, sizeof(out->password), path, error);
    if (result != SPILE_OK)
      return result;
  }
  if (out->user[0] != '\0' && out->password[0] == '\0')
    return address_fail(error,
                        "the address has a user but no password; write USER:PASSWORD, or set SPILE_REDIS_PASSWORD "
                        "or SPILE_REDIS_PASSWORD_FILE");
  return SPILE_OK;
}

static bool database_parse(spile__redis_address *out, const char *text) {
  return spile__number_parse(text, 0, INT32_MAX, &out->database);
}

/* ---- TCP ---- */

/* USER[:PASSWORD] or :PASSWORD, which ends at the '@'. */
static int user_parse(spile__redis_address *out, const char *from, const char *to, spile_error *error) {
  const char *colon = memchr(from, ':', (size_t)(to - from));
  const char *user_end = colon != NULL ? colon : to;
  if (!spile__percent_decode(from, user_end, out->user, sizeof(out->user)) ||
      (colon != NULL && !spile__percent_decode(colon + 1, to, out->password, sizeof(out->password))))
    return address_fail(error, "the user or password in the address has a broken %XX escape or is too long; write a "
                               "literal % as %25");
  return SPILE_OK;
}

/* Reads a host that is an address in numbers, which takes no look-up. @return false when it is a name */
static bool peer_read(spile__redis_peers *out, const char *host, const char *port) {
  struct addrinfo hints = {
      .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
  struct addrinfo *found = NULL;
  if (getaddrinfo(host, port, &hints, &found) != 0)
    return false;
  bool fits = found->ai_addrlen <= sizeof(out->list[0].address);
  if (fits) {
    memcpy(&out->list[0].address, found->ai_addr, found->ai_addrlen);
    out->list[0].address_len = found->ai_addrlen;
    out->n = 1;
  }
  freeaddrinfo(found);
  return fits;
}

static int tcp_parse(spile__redis_address *out, const char *text, spile_error *error) {
  const char *end = text + strcspn(text, "/?#");
  if (strchr(end, '@') != NULL)
    return address_fail(error,
                        "there is an '@' behind the host; in a user or password write '/' as %2F, '?' as %3F and "
                        "'#' as %23");
  const char *at = memrchr(text, '@', (size_t)(end - text));
  const char *host = at != NULL ? at + 1 : text;
  if (at != NULL) {
    int result = user_parse(out, text, at, error);
    if (result != SPILE_OK)
      return result;
  }

  const char *host_end;
  const char *port;
  if (*host == '[') {
    host++;
    host_end = memchr(host, ']', (size_t)(end - host));
    if (host_end == NULL)
      return address_fail(error, "the host begins with '[' and has no ']'; " TCP_FORM);
    port = host_end + 1;
  } else {
    host_end = memchr(host, ':', (size_t)(end - host));
    if (host_end == NULL)
      host_end = end;
    port = host_end;
    if (port < end && memchr(port + 1, ':', (size_t)(end - port - 1)) != NULL)
      return address_fail(error, "the host has more than one ':'; write an IPv6 address in brackets, [::1]:6379");
  }
  char host_text[256];
  if (host == host_end || !spile__percent_decode(host, host_end, host_text, sizeof(host_text)))
    return address_fail(error, "the address has no host that can be read; " TCP_FORM);

  char port_text[8] = "6379";
  int64_t number;
  if (port < end && (*port != ':' || !spile__percent_decode(port + 1, end, port_text, sizeof(port_text)) ||
                     !spile__number_parse(port_text, 1, 65535, &number)))
    return address_fail(error, "the port is not a number from 1 to 65535; " TCP_FORM);
  if (*end == '/' && end[1] != '\0' && !database_parse(out, end + 1))
    return address_fail(error, "what follows the host is not the number of a database; " TCP_FORM);
  if (*end == '?' || *end == '#')
    return address_fail(error, "a redis:// address has no parameters; " TCP_FORM);

  bool bracket = strchr(host_text, ':') != NULL;
  (void)snprintf(out->target, sizeof(out->target), bracket ? "[%s]:%s" : "%s:%s", host_text, port_text);
  if (!peer_read(&out->peers, host_text, port_text)) {
    memcpy(out->host, host_text, sizeof(out->host));
    memcpy(out->port, port_text, sizeof(out->port));
  }
  return SPILE_OK;
}

/* ---- Unix sockets ---- */

static int parameter_parse(spile__redis_address *out, const char *from, const char *to, spile_error *error) {
  const char *equals = memchr(from, '=', (size_t)(to - from));
  size_t name_len = equals != NULL ? (size_t)(equals - from) : 0;
  char number[16];
  if (name_len == 2 && memcmp(from, "db", 2) == 0) {
    if (!spile__percent_decode(equals + 1, to, number, sizeof(number)) || !database_parse(out, number))
      return address_fail(error, "db is not the number of a database; " UNIX_FORM);
  } else if (name_len == 4 && memcmp(from, "user", 4) == 0) {
    if (!spile__percent_decode(equals + 1, to, out->user, sizeof(out->user)))
      return address_fail(error, "the user has a broken %XX escape or is too long; write a literal % as %25");
  } else if (name_len == 8 && memcmp(from, "password", 8) == 0) {
    if (!spile__percent_decode(equals + 1, to, out->password, sizeof(out->password)))
      return address_fail(error, "the password has a broken %XX escape or is too long; write a literal % as %25");
  } else {
    return address_fail(error, "the address has a parameter other than db, user and password; " UNIX_FORM);
  }
  return SPILE_OK;
}

static int unix_parse(spile__redis_address *out, const char *text, spile_error *error) {
  struct sockaddr_un *address = (struct sockaddr_un *)&out->peers.list[0].address;
  const char *end = text + strcspn(text, "?");
  if (text[0] != '/' || !spile__percent_decode(text, end, address->sun_path, sizeof(address->sun_path)))
    return address_fail(error, "the address has no absolute path of at most 107 bytes; " UNIX_FORM);
  address->sun_family = AF_UNIX;
  out->peers.list[0].address_len = sizeof(*address);
  out->peers.n = 1;
  (void)snprintf(out->target, sizeof(out->target), "%s", address->sun_path);
  while (*end != '\0' && end[1] != '\0') {
    const char *parameter = end + 1;
    end = parameter + strcspn(parameter, "&");
    int result = parameter_parse(out, parameter, end, error);
    if (result != SPILE_OK)
      return result;
  }
  return SPILE_OK;
}

int spile__redis_address_parse(spile__redis_address *out, const char *text, bool unix_socket, spile_error *error) {
  int result = unix_socket ? unix_parse(out, text, error) : tcp_parse(out, text, error);
  return result == SPILE_OK ? password_find(out, error) : result;
}
