/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits files: which limits a request meets, and whose bucket each of them is.
 *
 * A limits file (JSON) names limits by route, by tier and for every request, and says for each whose bucket it is
 * (tenant, user, api key, address …). It is loaded into one immutable object; a server finds the entry of a request in
 * it, without allocating, and takes from all of the entry's limits in one step. docs/limits.md describes the file.
 */
#ifndef SPILE_LIMITS_H
#define SPILE_LIMITS_H

#include <spile/spile.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Loading ---- */

/* A loaded limits file: immutable, reference-counted. Thread-safety: safe. */
typedef struct spile_limits spile_limits;

typedef enum spile_fault_level {
  SPILE_FAULT_ERROR = 1,   /* the file is not loaded */
  SPILE_FAULT_WARNING = 2, /* it is loaded; somebody should look */
} spile_fault_level;

/* One thing that is wrong with a limits file. */
typedef struct spile_fault {
  int level;          /* a spile_fault_level */
  const char *file;   /* as given to the loader */
  int line;           /* counted from 1 … */
  int column;         /* … in bytes */
  const char *path;   /* where in the document, such as limits["POST /search"].capacity; "" for the file as a whole */
  const char *what;   /* what is wrong, without a line end */
  const char *advice; /* what to write; "" where nothing can be said */
  size_t count;       /* 1; more where the last says how many errors, or warnings, are not told one by one */
} spile_fault;

/* Called for each fault in the order of the text. The strings live for the call. */
typedef void spile_fault_visitor(void *user, const spile_fault *fault);

/**
 * Loads a limits file. Every fault is reported, not the first alone; after an error nothing is loaded.
 *
 * @param out    the limits, owned by the caller (spile_limits_unref); NULL on failure
 * @param path   of the file
 * @param visit  gets every error and warning; may be NULL
 * @param user   passed to visit
 * @param error  may be NULL; the first error, as FILE:LINE:COLUMN: PATH: WHAT; ADVICE, and how many there are
 * @return SPILE_OK; SPILE_EINVAL, out or path is NULL; SPILE_ECONFIG, the file cannot be read or has errors;
 *         SPILE_ENOMEM; SPILE_ENOTSUP, this build has no limits files
 *
 * Blocks for reading the file. Thread-safety: safe.
 */
int spile_limits_load(spile_limits **out, const char *path, spile_fault_visitor *visit, void *user,
                      spile_error *error) SPILE_MUST_USE;

/** Loads limits from a text of `len` bytes; `file` names it in messages. Otherwise as spile_limits_load. */
int spile_limits_parse(spile_limits **out, const char *text, size_t len, const char *file, spile_fault_visitor *visit,
                       void *user, spile_error *error) SPILE_MUST_USE;

/** One more owner; returns it. NULL is fine. Thread-safety: safe. */
spile_limits *spile_limits_ref(spile_limits *limits);

/** One owner less; the last one frees it. NULL is fine. Thread-safety: safe. */
void spile_limits_unref(spile_limits *limits);

/** The file's key_prefix, or NULL where it has none: for spile_options.key_prefix. Lives as long as the limits. */
const char *spile_limits_key_prefix(const spile_limits *limits);

/**
 * Puts limits in force on a limiter, in one step while takes run: a call that has begun goes on under the old ones, one
 * that begins afterwards meets the new ones. Buckets keep their state.
 *
 * @param limits  NULL: none. The limiter becomes one more owner.
 * @param error   may be NULL; what the file has that is refused is told as spile_limits_load tells it, with its place
 * @return SPILE_OK; SPILE_EINVAL, limiter is NULL; SPILE_ECONFIG, the limits' key_prefix is not the limiter's, or a
 *         limit is by api_key and the limiter has no options.secret_file; SPILE_EFORK. Whatever was in force stays so
 *         then.
 * Thread-safety: safe.
 */
int spile_set_limits(spile_limiter *limiter, spile_limits *limits, spile_error *error);

/** The limits in force, owned by the caller (spile_limits_unref); NULL where none are. Thread-safety: safe. */
spile_limits *spile_current_limits(spile_limiter *limiter);

/* ---- Which limits a request meets ---- */

/* The entry of a route: a part of its spile_limits, and lives as long. */
typedef struct spile_route spile_route;

typedef enum spile_route_word {
  SPILE_ROUTE_LIMITED = 1,   /* limits apply */
  SPILE_ROUTE_UNLIMITED = 2, /* no limit of its own; the limits for every request still apply */
  SPILE_ROUTE_BLOCKED = 3,   /* nobody may go ahead */
} spile_route_word;

/**
 * The most specific entry for a request. The path decides first: exact, then the glob with the most literal characters
 * in its path, then `default`; then the method: the request's own, GET for HEAD, then any; of entries alike in both the
 * tier's.
 *
 * Both sides are brought into one spelling first: the method in capitals, the path without query, with its escapes
 * undone (%41 is A) but those of / ? # % and of control characters, // as /, . and .. resolved and no slash at the end;
 * with "ignore_case": true in the file letters of paths are small. A target in absolute form (http://host/path; RFC
 * 9112, 3.2.2) is its path, no path is /, and one without a slash at its beginning gets it. A request that has more
 * than 8,191 bytes in its one spelling, method and space included, meets an entry "(too long)" that is blocked, so that
 * length is no way round one.
 *
 * @param method  such as "POST"; NULL: `path` is the whole text of a route, such as "POST /search"
 * @param path    the path, or the pattern that the server's router matched; a query does not matter
 * @param tier    NULL or a name that the file does not have: the base limits alone
 * @return never NULL, as a file has a `default`
 * Takes time in proportion to the length of the path. Allocates nothing. Thread-safety: safe.
 */
const spile_route *spile_limits_find(const spile_limits *limits, const char *method, const char *path,
                                     const char *tier) SPILE_MUST_USE;

/** The text of the entry in its one spelling ("POST /search", "default"), which names its buckets; and its word. */
const char *spile_route_text(const spile_route *route);
int spile_route_word_of(const spile_route *route);

/** How many limits a request of this route meets, those of every request included; at most SPILE_ROUTE_LIMITS_MAX. */
#define SPILE_ROUTE_LIMITS_MAX 16
size_t spile_route_count(const spile_route *route);

/** The limit at `index`, the cost of one request under it, and whether it is a shadow limit; both may be NULL. Those in
 * force come first. @return NULL: index is out of range */
const spile_limit *spile_route_limit(const spile_route *route, size_t index, int64_t *cost, bool *shadow);

/* ---- Asking by a limits file ---- */

/* Who asks. What is NULL or "" is not known. The strings are not kept. */
typedef struct spile_caller {
  size_t struct_size; /* set by SPILE_CALLER_INIT */
  const char *tenant;
  const char *user;
  const char *api_key; /* never stored: its keyed hash is */
  const char *ip;      /* the client's address as text, found through the proxies already */
  const char *tier;
  /* The value of a request header, or NULL; `name` as the limits file writes it. May be NULL. */
  const char *(*header)(void *header_user, const char *name);
  void *header_user;
  /* For tools that know one name and not what it is: the value of the first kind of every chain, in place of all the
   * others, which are not asked. A route or "global" stays what it is. */
  const char *bare;
  /* `ip` is not the client but the nearest hop to it that is known (SPILE_HTTP_CLIENT_NEAREST): it is counted, and
   * matches no "ip" of "skip". */
  bool ip_is_proxy;
} spile_caller;

#define SPILE_CALLER_INIT \
  { sizeof(spile_caller), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false }

#define SPILE_ROUTE_COST (-1) /* the cost that the limits file gives */

/* The decision for a request and what each limit says. */
typedef struct spile_ruling {
  spile_decision decision; /* of the limit that decides; of "blocked", "unlimited" and skip: decided_by is LIMITS */
  const spile_route *route;
  bool skipped;    /* an entry of "skip" matched */
  size_t n;        /* limits that were asked and are in force */
  size_t n_shadow; /* shadow limits that were asked, after those */
  size_t n_waived; /* spile_http_check alone: limits left out, as the caller lacks their subject and they are open */
  spile_decision each[SPILE_ROUTE_LIMITS_MAX];
  const spile_limit *limits[SPILE_ROUTE_LIMITS_MAX]; /* the limit of each */
} spile_ruling;

/**
 * Takes for a request: finds its entry, makes the key of each limit, and asks for all of them in one step, all or
 * nothing. Shadow limits are asked after the store let the others by, each alone, and change nothing but the counters.
 * "blocked" is SPILE_NEVER; a skipped request, and one that meets no limit in force, is SPILE_ALLOWED; both are decided
 * by the limits, with all numbers unknown, and ask no store.
 *
 * @param limits  in force for this call, held by the caller for as long as the ruling is used
 * @param cost    tokens for each limit of the route's own entry, 0 or more; SPILE_ROUTE_COST: the entry's. The limits
 * of every request keep their own.
 * @param ruling  written on every result; of `each` and `limits` the first n + n_shadow
 * @return as spile_take; SPILE_ENOSUBJECT, a limit's key needs something that the caller does not have (nothing was
 *         asked; the decision names the limit, the strictest by on_store_error when there are several); SPILE_ECONFIG,
 * a subject must be hashed and options.secret_file is not set
 *
 * May block for the store's timeout, and again for each shadow limit. Allocates only where the keys of the request are
 * longer than 1,024 bytes together, or that of a shadow limit is (options.allocate); without that memory the limits
 * decide as of a store that does not answer, with SPILE_REASON_MEMORY, and a limit that fails is SPILE_ENOMEM. Needs
 * less than 48 KiB of stack, besides what hooks, the log and caller->header need. Thread-safety: safe.
 */
int spile_limits_take(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                      const spile_caller *caller, int64_t cost, spile_ruling *ruling) SPILE_MUST_USE;

/** What spile_limits_take would find, and writes nothing. */
int spile_limits_peek(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                      const spile_caller *caller, int64_t cost, spile_ruling *ruling) SPILE_MUST_USE;

/**
 * Charges a request that was taken before, or gives back to it, as spile_charge_all and spile_refund_all do: for a cost
 * that is known only afterwards. Shadow limits too, each alone.
 *
 * @param cost  tokens for each limit of the route's own entry, 0 or more; the limits of every request are then left
 *              out. SPILE_ROUTE_COST: each limit its own cost, those of every request too, as a take of it has paid
 * @return as spile_charge, and SPILE_ENOSUBJECT and SPILE_ECONFIG as spile_limits_take; also for a request that is
 *         blocked or meets no limit in force what spile_limits_take returns, and nothing is done
 */
int spile_limits_charge(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                        const spile_caller *caller, int64_t cost, spile_ruling *ruling);
int spile_limits_refund(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                        const spile_caller *caller, int64_t cost, spile_ruling *ruling);

#ifdef __cplusplus
}
#endif
#endif
