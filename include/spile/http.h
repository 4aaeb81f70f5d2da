/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For HTTP servers: one call that says whether a request may go ahead, and if not, with which status, headers and
 * body it is to be refused. There is no web framework inside: what a request has is handed in, what a response needs is
 * handed back, and a middleware in any framework is these lines:
 *
 *     char text[SPILE_HTTP_BUFFER_SIZE];
 *     spile_http_request request = SPILE_HTTP_REQUEST_INIT;
 *     request.settings = app->settings;
 *     request.method = req->method, request.path = req->target, request.peer = req->peer;
 *     request.header = my_header, request.header_user = req;
 *     spile_http_response answer = SPILE_HTTP_RESPONSE_INIT(text, sizeof(text));
 *     bool go_ahead = spile_http_check(app->limiter, &request, &answer) == SPILE_ALLOWED;
 *     for (size_t i = 0; i < answer.header_count; i++)
 *       my_set_header(res, answer.headers[i].name, answer.headers[i].value);
 *     return go_ahead ? my_next(req, res) : my_send(res, answer.status, answer.body, answer.body_len);
 *
 * docs/http.md explains the headers, the statuses and who the client is behind proxies.
 */
#ifndef SPILE_HTTP_H
#define SPILE_HTTP_H

#include <spile/limits.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Settings ---- */

/* Which header says who the client is, when the peer is a proxy. One, never both: the other is the client's to write.
 */
typedef enum spile_http_forwarded {
  SPILE_HTTP_PEER = 0,            /* none: the peer is the client */
  SPILE_HTTP_X_FORWARDED_FOR = 1, /* X-Forwarded-For: 203.0.113.9, 10.0.0.5 */
  SPILE_HTTP_FORWARDED = 2,       /* Forwarded: for=203.0.113.9, for="[2001:db8::1]:4711" (RFC 7239) */
} spile_http_forwarded;

/* The limit headers, which tell a client how much it has left. Retry-After is always there when waiting helps. */
typedef enum spile_http_dialect {
  SPILE_HTTP_X_RATELIMIT = 0, /* X-RateLimit-Limit, -Remaining, -Reset: of the limit that decided */
  SPILE_HTTP_DRAFT_11 = 1,    /* RateLimit, RateLimit-Policy: of all limits (draft-ietf-httpapi-ratelimit-headers-11) */
  SPILE_HTTP_BOTH = 2,
  SPILE_HTTP_NEITHER = 3,
} spile_http_dialect;

/* What X-RateLimit-Reset counts; it tells when the bucket is full again. */
typedef enum spile_http_reset {
  SPILE_HTTP_RESET_EPOCH = 0,   /* seconds since 1970, rounded up */
  SPILE_HTTP_RESET_SECONDS = 1, /* seconds from now, rounded up */
} spile_http_reset;

typedef enum spile_http_body {
  SPILE_HTTP_PROBLEM = 0, /* application/problem+json (RFC 9457), with the names of the limits that were violated */
  SPILE_HTTP_ERROR = 1,   /* application/json: {"error":"rate_limited"} */
  SPILE_HTTP_NO_BODY = 2,
} spile_http_body;

#define SPILE_HTTP_TRUSTED_MAX 256 /* networks */
#define SPILE_HTTP_HOPS_MAX 32     /* proxies between a client and the server: elements that are read of the header */
#define SPILE_HTTP_LINES_MAX 256   /* lines of the header */

typedef struct spile_http_options {
  size_t struct_size; /* set by SPILE_HTTP_OPTIONS_INIT */

  int forwarded; /* a spile_http_forwarded */

  /* Networks whose word is taken for who came to them: "10.0.0.0/8", "2001:db8::1"; "unix:" is a peer without an
   * address (HTTP over a UNIX socket). The header is read from the right, and the first address that is none of these
   * is the client. What cannot be read, and what is more than SPILE_HTTP_HOPS_MAX and SPILE_HTTP_LINES_MAX, leaves the
   * last trusted hop in its place, which is then counted and never exempt. Up to SPILE_HTTP_TRUSTED_MAX; none: the
   * header is not read. */
  const char *const *trusted;
  size_t trusted_count;

  /* In their place: how many proxies stand before the server, whatever their addresses, 1 to SPILE_HTTP_HOPS_MAX; the
   * client is this many from the right. Only where nobody can reach the server past them. 0: by networks. */
  int hops;

  int dialect; /* a spile_http_dialect */
  int reset;   /* a spile_http_reset */
  int body;    /* a spile_http_body */
} spile_http_options;

#define SPILE_HTTP_OPTIONS_INIT \
  { sizeof(spile_http_options), 0, NULL, 0, 0, 0, 0, 0 }

/* Checked options, made once. Immutable. Thread-safety: safe. */
typedef struct spile_http_settings spile_http_settings;

/**
 * Checks options and keeps a copy.
 *
 * @param out    the settings, owned by the caller (spile_http_settings_free); NULL on failure
 * @param error  may be NULL; names the network that is not one
 * @return SPILE_OK; SPILE_EINVAL, out or options is NULL, or a number is out of range; SPILE_ECONFIG, a network cannot
 * be read, networks and hops are both given, or either without the header they are for; SPILE_ENOMEM
 */
int spile_http_settings_create(spile_http_settings **out, const spile_http_options *options,
                               spile_error *error) SPILE_MUST_USE;

/** Frees settings that no request uses any more. NULL is fine. */
void spile_http_settings_free(spile_http_settings *settings);

/* ---- One call for servers ---- */

/**
 * A request's header, called during spile_http_check.
 *
 * @param index  which of several lines of one name, counted from 0 in the order they came. Proxies may add lines; one
 *               that is left out is a way to forge an address.
 * @return the value, or NULL when there is no such line; lives until the next call
 */
typedef const char *spile_http_lookup(void *user, const char *name, size_t index);

typedef struct spile_http_request {
  size_t struct_size;                  /* set by SPILE_HTTP_REQUEST_INIT */
  const spile_http_settings *settings; /* NULL: all options 0 */
  const char *method;                  /* "GET" */
  const char *path;                    /* the target as it came, a query included, which is not looked at … */
  const char *route;                   /* … or the pattern that the router matched; then path is not looked at */
  const char *peer;          /* the address at the other end of the connection; NULL or "unix:": it has none */
  spile_http_lookup *header; /* NULL: there are no headers */
  void *header_user;         /* passed to it */
  /* Who asks, as far as the server knows; NULL or "": it does not. */
  const char *tenant;
  const char *user;
  const char *api_key;
  const char *tier;
  int64_t cost; /* tokens, 0 or more; SPILE_ROUTE_COST: what the limits file says */
} spile_http_request;

#define SPILE_HTTP_REQUEST_INIT \
  { sizeof(spile_http_request), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, SPILE_ROUTE_COST }

typedef struct spile_http_header {
  const char *name;
  const char *value; /* without line ends or other control characters */
} spile_http_header;

#define SPILE_HTTP_HEADERS_MAX 8
#define SPILE_HTTP_CLIENT_MAX 64
#define SPILE_HTTP_BUFFER_SIZE 2048 /* enough unless there are many limits with long names; then `needed` says it */
#define SPILE_HTTP_BUFFER_MAX 49152 /* enough for every answer */

typedef struct spile_http_response {
  size_t struct_size; /* set by SPILE_HTTP_RESPONSE_INIT */
  char *buffer;       /* in: where values and body are written; may be NULL */
  size_t size;        /* in: its bytes */
  size_t needed;      /* out: bytes that would hold everything. A header or body that does not fit is left out whole */

  int status; /* 200: go ahead; 429, 403 or 503: the answer; 500: this call was made wrongly (decision.detail) */
  size_t header_count;
  spile_http_header headers[SPILE_HTTP_HEADERS_MAX]; /* for the response, also when it goes ahead */
  const char *body;                                  /* NUL-terminated; NULL: none */
  size_t body_len;

  /* For logs and metrics. */
  spile_decision decision;            /* its `name` is `limit` below, or NULL */
  bool skipped;                       /* an entry of "skip" matched */
  size_t n_waived;                    /* open limits that were left out, as the caller lacks their subject */
  char client[SPILE_HTTP_CLIENT_MAX]; /* the address that was counted, as spile_http_client finds it; "": none */
  char limit[SPILE_NAME_LEN_MAX + 1];
} spile_http_response;

/* `text` and `size` as in char text[SPILE_HTTP_BUFFER_SIZE]. What is not named is written by the call. */
#define SPILE_HTTP_RESPONSE_INIT(text, size)                                                             \
  {                                                                                                      \
    sizeof(spile_http_response), (text), (size), 0, 0, 0, {{NULL, NULL}}, NULL, 0, {0}, false, 0, {0}, { \
      0                                                                                                  \
    }                                                                                                    \
  }

/**
 * Takes for a request under the limits that are in force on the limiter (spile_set_limits), and says how to answer it.
 *
 * Finds out who the client is, takes (spile_limits_take), and makes status, headers and body of what came out:
 *
 *   allowed                           200   limit headers, but for policy answers and skipped or unlimited requests
 *   denied                            429   limit headers, Retry-After
 *   never                             429   the same where the store knows them; no Retry-After: waiting is no help
 *   blocked                           403
 *   no answer and on_store_error is
 *   closed or fail, or no room        503   no limit headers and no Retry-After: nobody knows them
 *   no subject for a limit            as if its store could not answer: left out when open, else 503
 *
 * @param response  written on every result, unless it is NULL or not started by its INIT: then nothing is, and
 *                  options.log is told, once a second
 * @return SPILE_ALLOWED: go ahead. Anything else: refuse with response->status. SPILE_DENIED, SPILE_NEVER, or an error
 * as from spile_limits_take; SPILE_ECONFIG also where no limits are in force; SPILE_EINVAL, an argument is NULL or not
 * started by its INIT
 *
 * May block as spile_limits_take. Allocates, as that does, only for keys that are longer than 1,024 bytes together;
 * needs less than 48 KiB of stack, besides what hooks, the log and request->header need. Holds the limits during the
 * call alone. Thread-safety: safe.
 */
int spile_http_check(spile_limiter *limiter, const spile_http_request *request,
                     spile_http_response *response) SPILE_MUST_USE;

/* ---- Its parts ---- */

/* What spile_http_client found. */
typedef enum spile_http_found {
  SPILE_HTTP_CLIENT_UNKNOWN = 0, /* there is no address, as with a UNIX socket */
  SPILE_HTTP_CLIENT_FOUND = 1,   /* the client's */
  SPILE_HTTP_CLIENT_NEAREST = 2, /* that of the nearest hop to it: whom that one names cannot be read, or stands behind
                                    more lines or hops than are read */
} spile_http_found;

/**
 * Who the client is: the peer, or whom trusted proxies name.
 *
 * @param peer  as in a request
 * @param out   the address, in one spelling; "" where there is none
 * @return a spile_http_found. Who asks by himself (spile_limits_take) sets caller.ip_is_proxy for the nearest hop, or
 *         an entry of "skip" for the proxy's network exempts whoever writes what cannot be read
 * Thread-safety: safe.
 */
int spile_http_client(const spile_http_settings *settings, const char *peer, spile_http_lookup *header,
                      void *header_user, char out[SPILE_HTTP_CLIENT_MAX]) SPILE_MUST_USE;

/**
 * Makes an answer of what spile_limits_take returned and ruled; `client` is left as it is. Calls no store.
 *
 * @param result    what it returned
 * @param now_ms    milliseconds since 1970, for X-RateLimit-Reset
 * @param response  written; with `needed` above `size` call again with more room
 * Thread-safety: safe.
 */
void spile_http_answer(const spile_http_settings *settings, int result, const spile_ruling *ruling, int64_t now_ms,
                       spile_http_response *response);

/**
 * Writes the headers as one block, "Name: value\r\n" for each, with a NUL behind.
 *
 * @return bytes that it needs, the NUL included. Above `size`: it was not written, but for a NUL where there is room
 */
size_t spile_http_block(const spile_http_response *response, char *out, size_t size);

#ifdef __cplusplus
}
#endif
#endif
