/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who the client is behind proxies. Each proxy writes at the right end whom it was called by, so what stands there was
 * written by our own proxy, and the left end by whoever wanted to. The walk therefore starts at the peer and goes left
 * for as long as the one who wrote is trusted; the first who is not is the client. It stops at what cannot be read, and
 * at more than is read, with the last trusted hop: the caller then shares a bucket with the proxy, and can be nobody
 * else. Nor is he taken for the proxy where that is exempt: what stopped the walk may be his doing.
 *
 * Lines of a header are one list, the last line at its right end. Elements are cut from the right as well, so that no
 * quote that a client leaves open on the left can swallow what a proxy wrote.
 */
#include <string.h>
#include <strings.h>

#include "http/http.h"

/* Bytes of one element; an address with a port and parameters has less than half. */
#define CLIENT_ELEMENT_MAX 512

/* ---- The list, from the right ---- */

typedef struct hop_list {
  spile_http_lookup *header;
  void *user;
  const char *name;
  bool quotes;       /* commas in quoted strings are none */
  size_t lines_left; /* not yet begun */
  const char *line;  /* NULL: the next is to be begun */
  size_t len;        /* of it, still to be read */
  size_t steps;      /* elements that may still be read, empty ones included */
  bool cut;          /* there is more than may be read */
} hop_list;

static void hop_list_begin(hop_list *list, const spile_http_settings *settings, spile_http_lookup *header, void *user) {
  bool plain = settings->forwarded == SPILE_HTTP_X_FORWARDED_FOR;
  *list = (hop_list){.header = header,
                     .user = user,
                     .name = plain ? "X-Forwarded-For" : "Forwarded",
                     .quotes = !plain,
                     .steps = SPILE_HTTP_HOPS_MAX};
  if (header == NULL || settings->forwarded == SPILE_HTTP_PEER)
    return;
  while (list->lines_left <= SPILE_HTTP_LINES_MAX && header(user, list->name, list->lines_left) != NULL)
    list->lines_left++;
  /* Nobody sends so many in good faith, and which is the last is not known. */
  list->cut = list->lines_left > SPILE_HTTP_LINES_MAX;
  if (list->cut)
    list->lines_left = 0;
}

/* Whether the quote at `at` is escaped: an odd number of backslashes stands before it. */
static bool is_escaped(const char *line, size_t at) {
  size_t n = 0;
  while (n < at && line[at - n - 1] == '\\')
    n++;
  return n % 2 == 1;
}

/* Where the last element of the line begins. */
static size_t last_element(const hop_list *list) {
  bool quoted = false;
  size_t at = list->len;
  while (at > 0) {
    char c = list->line[at - 1];
    if (c == ',' && !quoted)
      break;
    if (c == '"' && list->quotes && !(quoted && is_escaped(list->line, at - 1)))
      quoted = !quoted;
    at--;
  }
  return at;
}

static bool is_blank(const char *bytes, size_t len) {
  while (len > 0 && (bytes[len - 1] == ' ' || bytes[len - 1] == '\t'))
    len--;
  return len == 0;
}

/* The next element to the left that is not empty. @return false: there is none, or list->cut: it is not read */
static bool hop_list_next(hop_list *list, const char **element, size_t *len) {
  for (; list->steps > 0; list->steps--) {
    if (list->line == NULL) {
      if (list->lines_left == 0)
        return false;
      list->line = list->header(list->user, list->name, --list->lines_left);
      list->cut = list->line == NULL;
      if (list->cut)
        return false;
      list->len = strlen(list->line);
    }
    size_t start = last_element(list);
    *element = list->line + start;
    *len = list->len - start;
    /* Without a comma before it the line is at its end. */
    if (start == 0)
      list->line = NULL;
    else
      list->len = start - 1;
    if (!is_blank(*element, *len)) {
      list->steps--;
      return true;
    }
  }
  list->cut = list->line != NULL || list->lines_left > 0;
  return false;
}

/* ---- One element ---- */

static size_t skip_blanks(const char *bytes, size_t at, size_t len) {
  while (at < len && (bytes[at] == ' ' || bytes[at] == '\t'))
    at++;
  return at;
}

/*
 * Reads the value that begins at `at`: a quoted string, whose escapes are undone, or all up to the next ';'.
 * @return where it ends; len + 1 where a quoted string does not end
 */
static size_t read_value(const char *element, size_t at, size_t len, char *value, size_t *value_len) {
  bool quoted = at < len && element[at] == '"';
  char end = quoted ? '"' : ';';
  *value_len = 0;
  for (at += quoted; at < len && element[at] != end; at++) {
    if (quoted && element[at] == '\\' && ++at == len)
      break;
    value[(*value_len)++] = element[at];
  }
  if (!quoted)
    return at;
  return at < len ? at + 1 : len + 1;
}

/*
 * The value of `for` in an element of Forwarded (RFC 7239: NAME=VALUE with ';' between, names in any letters, each
 * once). `value` has room for the element.
 * @return false: it has none or several, or is not of this form
 */
static bool forwarded_for(const char *element, size_t len, char *value, size_t *value_len) {
  bool found = false;
  size_t at = 0;
  for (;;) {
    at = skip_blanks(element, at, len);
    size_t name = at;
    while (at < len && element[at] != '=' && element[at] != ';')
      at++;
    if (at < len && element[at] == '=') {
      bool is_for = at - name == 3 && strncasecmp(element + name, "for", 3) == 0;
      if (is_for && found)
        return false;
      char other[CLIENT_ELEMENT_MAX];
      size_t other_len;
      at = read_value(element, at + 1, len, is_for ? value : other, is_for ? value_len : &other_len);
      found = found || is_for;
    } else if (at > name) {
      return false;
    }
    if (at > len)
      return false;
    at = skip_blanks(element, at, len);
    if (at == len)
      return found;
    if (element[at++] != ';')
      return false;
  }
}

/* The address that an element names. @return false: none */
static bool element_address(const spile_http_settings *settings, const char *element, size_t len,
                            spile__address *address) {
  if (len > CLIENT_ELEMENT_MAX)
    return false;
  if (settings->forwarded == SPILE_HTTP_X_FORWARDED_FOR)
    return spile__address_parse(address, element, len);
  char value[CLIENT_ELEMENT_MAX];
  size_t value_len = 0;
  return forwarded_for(element, len, value, &value_len) && spile__address_parse(address, value, value_len);
}

/* ---- The walk ---- */

/* The last one who is known, on the way from the peer to the client. */
typedef struct hop {
  spile__address address;
  bool known;
  bool nearest; /* somebody called it who is not known */
} hop;

static bool is_trusted(const spile_http_settings *settings, const spile__address *address) {
  for (size_t i = 0; i < settings->trusted_count; i++) {
    if (spile__network_has(&settings->trusted[i], address))
      return true;
  }
  return false;
}

/* Goes to whom an element names. @return false: it names no address */
static bool hop_to(hop *h, const spile_http_settings *settings, const char *element, size_t len) {
  spile__address address;
  h->nearest = !element_address(settings, element, len, &address);
  if (h->nearest)
    return false;
  h->address = address;
  h->known = true;
  return true;
}

/* To the hops-th element from the right; stays at the peer when there are fewer or it names no address. */
static void walk_by_count(hop *h, const spile_http_settings *settings, hop_list *list) {
  const char *element = NULL;
  size_t len = 0;
  for (int i = 0; i < settings->hops; i++) {
    if (!hop_list_next(list, &element, &len)) {
      h->nearest = list->cut;
      return;
    }
  }
  (void)hop_to(h, settings, element, len);
}

/* To the left for as long as the last known hop is trusted. */
static void walk_by_trust(hop *h, const spile_http_settings *settings, hop_list *list) {
  const char *element;
  size_t len;
  while (h->known ? is_trusted(settings, &h->address) : settings->trusts_unix) {
    if (!hop_list_next(list, &element, &len)) {
      h->nearest = list->cut;
      return;
    }
    if (!hop_to(h, settings, element, len))
      return;
  }
}

int spile_http_client(const spile_http_settings *settings, const char *peer, spile_http_lookup *header,
                      void *header_user, char out[SPILE_HTTP_CLIENT_MAX]) {
  if (settings == NULL)
    settings = &spile__http_defaults;
  hop h = {.nearest = false};
  bool is_unix = peer == NULL || strncmp(peer, "unix:", 5) == 0;
  h.known = !is_unix && spile__address_parse(&h.address, peer, strlen(peer));
  out[0] = '\0';
  /* A peer that is neither an address nor said to have none is a mistake of the server, and trusted with nothing. */
  if (!h.known && !is_unix)
    return SPILE_HTTP_CLIENT_UNKNOWN;
  hop_list list;
  hop_list_begin(&list, settings, header, header_user);
  if (settings->hops > 0)
    walk_by_count(&h, settings, &list);
  else
    walk_by_trust(&h, settings, &list);
  if (!h.known)
    return SPILE_HTTP_CLIENT_UNKNOWN;
  spile__address_spell(&h.address, out);
  return h.nearest ? SPILE_HTTP_CLIENT_NEAREST : SPILE_HTTP_CLIENT_FOUND;
}
