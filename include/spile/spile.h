/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile decides whether a caller may go ahead now and, if not, exactly when.
 *
 * A limit says what is allowed ("1/s,capacity=60"), a limiter is an open store, and a take asks the limiter for `cost`
 * tokens of the bucket that belongs to a key under a limit. What to know first:
 *
 * - Threads: a limiter and a limit may be used by any number of threads at once.
 * - Fork: a limiter belongs to the process that opened it. In a child every call on it is SPILE_EFORK, except
 *   spile_close; open a new one there.
 * - Time: whole milliseconds on the store's clock. memory: the wall clock read at open plus the time since; lmdb: the
 *   wall clock; redis: the server's clock.
 * - A take returns > 0 for an answer and < 0 for none, never 0, so no zeroed value lets traffic through.
 * - No function prints or exits. None starts a thread, with one exception: a take from a redis store whose host name is
 *   in doubt (a connection failed) starts one for that one look-up, since a look-up cannot be given a deadline.
 */
#ifndef SPILE_H
#define SPILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SPILE_MUST_USE __attribute__((warn_unused_result))
#else
#define SPILE_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Results ---- */

/* Answers of a take or a peek, all above zero. */
enum {
  SPILE_OK = 0,      /* work done; never the result of a take or a peek */
  SPILE_ALLOWED = 1, /* go ahead; the tokens are taken */
  SPILE_DENIED = 2,  /* not now; nothing is charged */
  SPILE_NEVER = 3,   /* the cost is above the capacity: no wait helps */
};

/* Errors, all below zero. A number is never used again for something else. */
#define SPILE_ERRORS(X)                                                               \
  X(EINVAL, -1, "an argument is out of range")                                        \
  X(ENOMEM, -2, "out of memory")                                                      \
  X(ECONFIG, -3, "a limit, an option or a store address is not valid")                \
  X(ENOTSUP, -4, "not supported by this build or this store")                         \
  X(EFORK, -5, "the limiter was opened by another process; open one in this process") \
  X(EUNAVAILABLE, -6, "the store could not answer")                                   \
  X(EFULL, -7, "the store has no room for a new bucket")                              \
  X(ENOSUBJECT, -8, "the limit's key needs something that the request does not have")

enum {
#define SPILE_ERROR_ENUM(name, number, text) SPILE_##name = number,
  SPILE_ERRORS(SPILE_ERROR_ENUM)
#undef SPILE_ERROR_ENUM
};

/* Why a store could not answer: the `store_error` of a decision and the `reason` of an error. */
#define SPILE_REASONS(X)                                                                                    \
  X(NONE, 0, "none")                                                                                        \
  X(TIMEOUT, 1, "timeout")   /* no answer by the deadline; whether a take was charged is not known */       \
  X(BUSY, 2, "busy")         /* ours or others use all there is, up to the deadline; nothing was charged */ \
  X(CONNECT, 3, "connect")   /* no connection; nothing was charged */                                       \
  X(CLOSED, 4, "closed")     /* the connection ended before the answer; whether charged is not known */     \
  X(PROTOCOL, 5, "protocol") /* the answer is not one that the store may give; the connection is closed */  \
  X(REFUSED, 6, "refused")   /* the server answered with an error of its own; nothing was charged */        \
  X(READONLY, 7, "readonly") /* the server is a replica; nothing was charged */                             \
  X(LOADING, 8, "loading")   /* the server is reading its data; nothing was charged */                      \
  X(OOM, 9, "oom")           /* the server is out of memory; nothing was charged */                         \
  X(AUTH, 10, "auth")        /* user, password or rights are missing; nothing was charged */                \
  X(FOREIGN, 11, "foreign")  /* what is stored under the bucket's key is not ours; it was left as it is */  \
  X(VERSION, 12, "version")  /* the server, or who shares the directory, is too old or too new */           \
  X(IO, 13, "io")            /* the operating system refused a read, a write or a commit */                 \
  X(CORRUPT, 14, "corrupt")  /* stored data is damaged */                                                   \
  X(RESOLVE, 15, "resolve")  /* the host name has no address */                                             \
  X(BREAKER, 16, "breaker")  /* not asked, since it failed just before; nothing was charged */              \
  X(MEMORY, 17, "memory")    /* this process is out of memory; nothing was charged */                       \
  X(FORMAT, 18, "format")    /* this bucket was written by a later version; it was left as it is */         \
  X(LOCKED, 19, "locked")    /* another writer or a stopped reader held the store; nothing was charged */   \
  X(SUBJECT, 20, "subject")  /* not asked: the caller has nothing that the limit's key asks for (spile_http_check) */

typedef enum spile_reason {
#define SPILE_REASON_ENUM(name, number, text) SPILE_REASON_##name = number,
  SPILE_REASONS(SPILE_REASON_ENUM)
#undef SPILE_REASON_ENUM
} spile_reason;

/* The detail of a failure, filled by calls that take a `spile_error *`, which may be NULL. The first failure stays. */
typedef struct spile_error {
  int code;          /* a SPILE_E… number; 0 while nothing failed */
  int reason;        /* a spile_reason; SPILE_REASON_NONE where no store was involved */
  int column;        /* in a text that was parsed: where, counted from 1; else 0 */
  char message[240]; /* one line without a line end: what is wrong and what to do */
} spile_error;

/**
 * The name of an error or answer, such as "SPILE_EINVAL" or "SPILE_ALLOWED", and what it means in one line.
 *
 * @param code  any number; an unknown one gets a constant text
 * @return a string that lives as long as the program. Thread-safety: safe.
 */
const char *spile_code_name(int code);
const char *spile_code_text(int code);

/** The word of an answer: "allowed", "denied", "never"; "none" for anything else. Thread-safety: safe. */
const char *spile_outcome_name(int outcome);

/** The word of a reason, such as "timeout"; "unknown" for a number that is not one. Thread-safety: safe. */
const char *spile_reason_name(int reason);

/** The library's version as "MAJOR.MINOR.PATCH". Thread-safety: safe. */
const char *spile_version(void);

/* ---- Limits ---- */

#define SPILE_KEY_LEN_MAX 4096           /* bytes of a key */
#define SPILE_NAME_LEN_MAX 255           /* bytes of a limit's name */
#define SPILE_REQUESTS_MAX 64            /* requests in one take_all */
#define SPILE_TIME_MAX_MS 10000000000000 /* the latest time a caller may give, in the year 2286 */

/* What a new key gets when memory or LMDB has no room for its bucket. Known keys are not concerned. A Redis server that
 * is out of memory is a store that fails: SPILE_REASON_OOM, by on_store_error. */
typedef enum spile_on_full {
  SPILE_ON_FULL_CLOSED = 0, /* denied */
  SPILE_ON_FULL_OPEN = 1,   /* allowed, not counted */
  SPILE_ON_FULL_FAIL = 2,   /* the take returns SPILE_EFULL */
} spile_on_full;

/* What a take gets when the store cannot answer. Denied and never are answers and never come here. */
typedef enum spile_on_store_error {
  SPILE_ON_STORE_ERROR_DEFAULT = 0, /* fail */
  SPILE_ON_STORE_ERROR_FAIL = 1,    /* the take returns SPILE_EUNAVAILABLE */
  SPILE_ON_STORE_ERROR_OPEN = 2,    /* allowed, not counted */
  SPILE_ON_STORE_ERROR_CLOSED = 3,  /* denied */
} spile_on_store_error;

/* How a limit counts; docs/algorithms.md says which one when. */
typedef enum spile_algorithm {
  SPILE_TOKEN_BUCKET = 1,   /* a bucket that refills continuously: bursts up to the capacity, then the rate */
  SPILE_LEAKY_BUCKET = 2,   /* admits what a token bucket does, and says by how long to delay it (delay_ms) */
  SPILE_FIXED_WINDOW = 3,   /* so many in each window of time; up to twice as many around where two of them meet */
  SPILE_SLIDING_WINDOW = 4, /* so many in each window, of which what the one before gave takes a part, as if given
                               evenly: where it was a burst, some more within any such time, fewer than twice as many */
  SPILE_SLIDING_LOG = 5,    /* so many in any window of time, exactly, at most 1,000: each take is remembered */
} spile_algorithm;

/* One validated limit: immutable, reference-counted. Thread-safety: safe. */
typedef struct spile_limit spile_limit;

/* A limit in numbers, for spile_limit_create. */
typedef struct spile_limit_def {
  size_t struct_size;       /* set by SPILE_LIMIT_DEF_INIT */
  const char *name;         /* 1 to SPILE_NAME_LEN_MAX bytes; NULL: "default" */
  int64_t capacity;         /* tokens, 1 or more: the largest burst; of a window: how many it admits */
  int64_t refill_tokens;    /* tokens that come back, 1 or more …; of a window: the capacity again, or 0 */
  int64_t refill_period_ms; /* … in this many milliseconds, 1 or more, continuously; of a window: its length */
  int on_full;              /* a spile_on_full */
  int on_store_error;       /* a spile_on_store_error */
  int64_t timeout_ms;       /* longest time for the store, 1 to 3,600,000; 0: the limiter's */
  int algorithm;            /* a spile_algorithm; 0: SPILE_TOKEN_BUCKET */
  int64_t debt;             /* tokens that spile_charge may take the level below zero, 0 or more; of a window: 0 */
} spile_limit_def;

#define SPILE_LIMIT_DEF_INIT \
  { sizeof(spile_limit_def), NULL, 0, 0, 0, SPILE_ON_FULL_CLOSED, SPILE_ON_STORE_ERROR_DEFAULT, 0, 0, 0 }

/**
 * Makes a limit from its text form: COUNT/PERIOD[,ALGORITHM][,capacity=TOKENS][,debt=TOKENS][,name=NAME]
 * [,on_full=closed|open|fail][,on_store_error=fail|open|closed].
 *
 * ALGORITHM is token_bucket, the default, leaky_bucket, fixed_window, sliding_window or sliding_log. "10/s" is 10
 * tokens a second with a capacity of 10; "1/s,capacity=60"; "0.05/s,capacity=5" (at most 9 decimals, and then a
 * capacity); "5/15m"; "1000/d,name=day". Units: ms, s, m, h, d. The rate is kept exactly, as a fraction.
 * "100/m,fixed_window" is a window: 100 tokens, all of which it may give at once, in each minute; it has no capacity
 * beside that. Windows begin at multiples of their length since 1970 in UTC, so that of "1000/d,fixed_window" is the
 * calendar day. "100/m,debt=50" is a bucket that spile_charge may leave with 50 tokens below zero; token_bucket and
 * leaky_bucket may have a debt, windows not.
 *
 * @param out    the limit, owned by the caller (spile_limit_unref); NULL on failure
 * @param text   NUL-terminated; not kept
 * @param error  may be NULL; `column` says where in the text
 * @return SPILE_OK; SPILE_EINVAL, out or text is NULL; SPILE_ECONFIG, the text is not a limit or leaves the bounds
 *         (buckets: (capacity + debt)·P + 1001·N at most 2^53 − 1 with N/P the rate per millisecond in lowest terms, P
 * and the time from the deepest debt to full at most ten years; windows: ten years, capacity at most 2^53 − 1, and of a
 * sliding_window 3·capacity·window as well; of a sliding_log capacity at most 1,000); SPILE_ENOMEM
 */
int spile_limit_parse(spile_limit **out, const char *text, spile_error *error);

/** Makes a limit from numbers. Parameters, results and bounds as spile_limit_parse. */
int spile_limit_create(spile_limit **out, const spile_limit_def *def, spile_error *error);

/** One more owner of `limit`; returns it. NULL is fine. Thread-safety: safe. */
spile_limit *spile_limit_ref(spile_limit *limit);

/** One owner less; the last one frees it. NULL is fine. Thread-safety: safe. */
void spile_limit_unref(spile_limit *limit);

/** The name, which lives as long as the limit, and the capacity in tokens. */
const char *spile_limit_name(const spile_limit *limit);
int64_t spile_limit_capacity(const spile_limit *limit);

/** Milliseconds from an empty bucket to a full one, rounded up; of a window the longest that anything counts. */
int64_t spile_limit_full_time_ms(const spile_limit *limit);

/* ---- Opening a store ---- */

/* An open store with its counters. Thread-safety: safe. After fork: SPILE_EFORK. */
typedef struct spile_limiter spile_limiter;

/* What a hook gets: see <spile/metrics.h>. */
typedef struct spile_event spile_event;

typedef enum spile_log_level { SPILE_LOG_ERROR = 1, SPILE_LOG_WARNING = 2, SPILE_LOG_INFO = 3 } spile_log_level;

typedef struct spile_options {
  size_t struct_size; /* set by SPILE_OPTIONS_INIT */

  /* Longest time one call may spend on the store, in milliseconds, 1 to 3,600,000; 0: 25 for Redis, 1,000 for LMDB.
   * Opening an LMDB directory waits for others that are opening or hold its lock for as long, at least 1,000. */
  int64_t timeout_ms;

  /* Set before every key in a shared store, 1 to 64 of A-Z a-z 0-9 - . _ ~; NULL: "rl". */
  const char *key_prefix;

  /* The time of every decision, 0 to SPILE_TIME_MAX_MS; NULL: the store's own clock. Buckets of a given time are kept
   * apart from all others in the store, under a mark and the key prefix. Must be thread-safe and must not block. */
  int64_t (*now_ms)(void *clock);
  /* How spile_wait waits; NULL: the thread sleeps. */
  void (*sleep_ms)(void *clock, int64_t ms);
  void *clock; /* passed to both */

  /* Works as realloc (size 0 frees and returns NULL); NULL: the C library's. Takes of the memory and LMDB stores do
   * not allocate, but for the copy of a limit when the memory store first meets it and, with metrics, the row of a
   * limit's name. Libraries below (hiredis, lmdb) use their own. */
  void *(*allocate)(void *user, void *block, size_t size);
  void *allocate_user;

  /* Gets one line without a line end, seldom unless log_denied_per_s is set; NULL: nothing is logged. Must be
   * thread-safe. */
  void (*log)(void *user, spile_log_level level, const char *line);
  void *log_user;

  /* The breaker: after this many failures of the store in a row it is left alone for a while, and takes are answered at
   * once by the limits' on_store_error; where only charges fail, denials go on. 0: 5; SPILE_BREAKER_OFF: every take
   * asks. */
  int breaker_failures;
  /* For how long, in milliseconds, 1 to 3,600,000; then one take asks again. Each failure of that one doubles the time,
   * up to 64 times the first, give or take a fifth drawn at random. 0: 1,000. */
  int64_t breaker_wait_ms;

  /* Wins over every limit's own on_store_error; 0: each limit's. A spile_on_store_error. */
  int on_store_error;

  /* Connections that Redis takes may use at a time, 1 to 64; 0: 4. Opened as needed. */
  int connections;

  /* Counters by limit, a spile_metrics_level of <spile/metrics.h>; 0: off. */
  int metrics;

  /* Called after a take that was denied (or never), and after one that brought a bucket below near_limit_percent of its
   * capacity, 1 to 99; 0: 20. NULL: not called. <spile/metrics.h> says what a hook may do. */
  void (*on_denied)(void *user, const spile_event *event);
  void (*on_near_limit)(void *user, const spile_event *event);
  void *hook_user; /* passed to both */
  int near_limit_percent;

  /* Denials are logged, with limit, route and a hash of the key, in at most so many lines a second, 1 to 1,000; a line
   * says how many were left out. 0: none are. */
  int log_denied_per_s;
  /* SPILE_SUBJECT_KEY_LEN secret bytes, copied, for that hash: processes that share them name a key alike. NULL: drawn
   * at random. */
  const void *subject_key;

  /* For limits files: a file of 32 to 4,096 secret bytes, read at open. API keys, and subjects longer than a key may
   * be, are stored as 128-bit hashes keyed by it; NULL: limits by api_key are SPILE_ECONFIG. All processes that share
   * buckets need the same file. Make one with: head -c 32 /dev/urandom | base64. Needs a build with libsodium. */
  const char *secret_file;

  /* For limits files: bits of an IPv6 address that make one caller, 32 to 128; 0: 64, as a host owns its whole /64. */
  int ipv6_prefix;
} spile_options;

#define SPILE_BREAKER_OFF (-1)

#define SPILE_OPTIONS_INIT                                                                                           \
  {                                                                                                                  \
    sizeof(spile_options), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0, \
        NULL, NULL, 0                                                                                                \
  }

/**
 * Opens a store.
 *
 *   memory:?keys=N                     in this process; room for N keys (default 100000, 1 to 100000000)
 *   lmdb:PATH?sync=none|meta|full&map_size=SIZE
 *                                      a directory that processes of one host share; made if missing
 *   redis://[USER:PASSWORD@]HOST[:PORT][/DB], redis+unix:///PATH[?db=N]
 *                                      a Redis 7.0 or later, or Valkey; a password may also come from the environment,
 *                                      as SPILE_REDIS_PASSWORD or in the file SPILE_REDIS_PASSWORD_FILE names
 *
 * Opening succeeds while a server is down; the takes then say so. Host names are looked up here, which may block.
 *
 * @param out      the limiter, owned by the caller (spile_close); NULL on failure
 * @param options  NULL: defaults; not kept, except what its pointers for clock, allocator and log point to
 * @param error    may be NULL
 * @return SPILE_OK; SPILE_EINVAL, out or uri is NULL or an option is out of range; SPILE_ECONFIG, the address or the
 *         secret file cannot be read; SPILE_ENOTSUP, this build lacks the store or the hash; SPILE_ENOMEM;
 * SPILE_EUNAVAILABLE, the directory or map cannot be opened
 */
int spile_open(spile_limiter **out, const char *uri, const spile_options *options, spile_error *error) SPILE_MUST_USE;

/**
 * Closes the store. No call may be under way on it. NULL is fine. May be called in a forked child.
 *
 * Waits for nobody: a look-up of a Redis server's host name that is under way goes on in its thread and is forgotten
 * when it ends, also after dlclose, which does not unload the library. Code that links the static library and is itself
 * unloaded must wait for that, as long as its resolver may take, or use a numeric address or a path.
 */
void spile_close(spile_limiter *limiter);

/**
 * Moves the data file of an LMDB store aside when it is damaged, so that the next spile_open begins an empty one.
 *
 * Every page in use is checked. A damaged or unreadable file becomes data.mdb.damaged-N beside it, N being the first
 * number that is free; nothing is deleted or written over, and the reason goes to the log as a warning. A sound file is
 * left alone, and so is a directory without one. Records that are damaged one by one concern their bucket only and do
 * not count; spile_clear removes them. The directory must not be in use.
 *
 * @param uri       lmdb:PATH, as for spile_open; its parameters do not matter
 * @param options   NULL: defaults. Of them allocator, log and timeout_ms (for who is just opening) are used
 * @param moved_to  out: the path of the file that was moved; "" when there was nothing to repair, and on failure. May
 * be NULL; else `size` bytes, enough for PATH and 33 more
 * @param error     may be NULL
 * @return SPILE_OK, moved or sound; SPILE_EINVAL, an argument is NULL or too short; SPILE_ECONFIG, the address cannot
 * be read; SPILE_ENOTSUP, the store has no files or this build no LMDB; SPILE_ENOMEM; SPILE_EUNAVAILABLE, with reason
 * BUSY while any process has the directory open, this one included; FOREIGN, it holds another program's database, which
 * is left alone; IO, it cannot be read or the file not moved
 *
 * Blocks as long as reading the file takes. Thread-safety: safe.
 */
int spile_repair(const char *uri, const spile_options *options, char *moved_to, size_t size,
                 spile_error *error) SPILE_MUST_USE;

/* ---- Asking ---- */

typedef enum spile_decided_by {
  SPILE_BY_NOBODY = 0, /* no answer: the call returned an error */
  SPILE_BY_STORE = 1,  /* the store decided */
  SPILE_BY_FULL = 2,   /* the store had no room for a new bucket: the limit's on_full decided */
  SPILE_BY_LIMITS = 3, /* the limits alone decided: never, while the store could not answer; or what a limits file
                          answers without a store: blocked, skipped, or no limit in force */
  SPILE_BY_POLICY = 4, /* the store could not answer, or (spile_http_check) could not be asked for want of a subject:
                          the limit's on_store_error decided */
} spile_decided_by;

/** The word of a spile_decided_by: "store", "full", "limits", "policy"; "nobody" for anything else. */
const char *spile_decided_by_name(int decided_by);

/* A number of a decision that nobody knows; retry_after_ms of "never" is it as well. */
#define SPILE_UNKNOWN (-1)

typedef struct spile_decision {
  int outcome;            /* SPILE_ALLOWED, SPILE_DENIED, SPILE_NEVER; 0 when the call returned an error */
  int decided_by;         /* a spile_decided_by */
  int store_error;        /* a spile_reason: why the store did not answer; SPILE_REASON_NONE when it did */
  uint32_t index;         /* which request decided, or failed the take, counted from 0 */
  const char *name;       /* the name of that limit; lives as long as the limit. NULL: an argument is out of range */
  int64_t capacity;       /* tokens, of that limit; SPILE_UNKNOWN where the name is NULL */
  int64_t remaining;      /* whole tokens left after the call, 0 to capacity; SPILE_UNKNOWN */
  int64_t retry_after_ms; /* denied by the store: the same take succeeds then and not 1 ms earlier, if nobody else
                             takes; allowed: 0; never, and whatever the store did not decide: SPILE_UNKNOWN */
  int64_t reset_after_ms; /* milliseconds until the bucket is full; SPILE_UNKNOWN */
  int64_t delay_ms;       /* allowed: wait so long before going ahead, for leaky_bucket limits, the longest of several;
                             else 0 */
  char detail[128];       /* why there is no answer, or why it is not the store's; else empty */
  int64_t granted;        /* spile_take_up_to, allowed: the tokens it took; else 0 */
  int64_t uncharged; /* spile_charge: whole tokens that were not charged, rounded up, of several the most; else 0 */
  int64_t grows_after_ms; /* milliseconds until `remaining` is one more, if nobody takes, and not 1 ms earlier;
                             SPILE_UNKNOWN, also where remaining is the capacity already */
  uint64_t reserved[1];   /* 0 */
} spile_decision;

/* One of several requests that are decided together. */
typedef struct spile_request {
  const spile_limit *limit;
  const void *key; /* any bytes */
  size_t key_len;  /* 1 to SPILE_KEY_LEN_MAX */
  int64_t cost;    /* tokens, 0 or more */
} spile_request;

/**
 * True when one token of `key` could be taken; false when not, and on every error.
 *
 * @param key  NUL-terminated
 * May block for the store's timeout.
 */
bool spile_allow(spile_limiter *limiter, const spile_limit *limit, const char *key) SPILE_MUST_USE;

/**
 * Takes `cost` tokens of `key`'s bucket under `limit`, if they are there.
 *
 * @param key       any bytes; not kept
 * @param key_len   bytes, 1 to SPILE_KEY_LEN_MAX
 * @param cost      tokens; 0 asks whether the bucket is not below zero, and writes nothing (spile_peek says what that
 *                  means for the wait); above the capacity is SPILE_NEVER
 * @param decision  written on every result; may be NULL
 * @return SPILE_ALLOWED, charged; SPILE_DENIED or SPILE_NEVER, nothing charged; SPILE_EINVAL, limiter, limit or key is
 *         NULL, key_len or cost is out of range, or the given time is; SPILE_EUNAVAILABLE, the store did not answer by
 *         the deadline and on_store_error is "fail" (`store_error` and `detail` say why, and whether a charge is
 *         possible); SPILE_EFULL, no room for the bucket of a limit with on_full "fail"; SPILE_ENOMEM, as
 *         SPILE_EUNAVAILABLE, for want of memory; SPILE_EFORK
 *
 * May block for the store's timeout. Allocates nothing (Redis: the command and its answer). Thread-safety: safe.
 */
int spile_take(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
               spile_decision *decision) SPILE_MUST_USE;

/**
 * Says what a take of `cost` would find, and writes nothing. Parameters and results as spile_take; `remaining` is what
 * is there now.
 *
 * A bucket that was written under other numbers, or by a clock that was set back by more than a second since, is
 * converted by the next take with a cost above 0, denied or not, and until then stands as it was. A peek, and a take of
 * cost 0, converts for its answer alone, as of its own time: so its retry_after_ms, reset_after_ms and grows_after_ms
 * are what they would be if it had been that take, and the next one may say otherwise, earlier or later. In all other
 * cases they are as exact as those of a take.
 */
int spile_peek(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
               spile_decision *decision) SPILE_MUST_USE;

/**
 * Takes from several buckets in one atomic step, all or nothing: if one denies, none is charged.
 *
 * Requests that name the same bucket (key, limit name) are summed first; the same bucket under different numbers or
 * policies is an error. The decision is that of the limit with the longest wait, never beating denied; when allowed,
 * that with the smallest remaining, then the longest reset, then the first. When the store does not answer, one limit
 * that fails comes before one that is closed, and that before one that is open; likewise on_full where limits find no
 * room, and then the decision names one of those. The deadline is the shortest of all.
 *
 * @param requests  1 to SPILE_REQUESTS_MAX
 * @param decision  written on every result; may be NULL
 * @param each      NULL, or n decisions: what each request's own limit says; written on every result. When the store
 *                  does not answer that is what its own on_store_error gives, and without room its on_full, which
 *                  allows nothing by itself
 * @return as spile_take
 */
int spile_take_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                   spile_decision *each) SPILE_MUST_USE;

/** What spile_take_all would find, and writes nothing. */
int spile_peek_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                   spile_decision *each) SPILE_MUST_USE;

/**
 * Takes as many tokens of `key`'s bucket as there are, `max` at most, if there are at least `min`.
 *
 * @param min       tokens, 0 or more; 0 asks whether the bucket is not below zero, and may be granted 0; above the
 *                  capacity is SPILE_NEVER
 * @param max       tokens, min or more; as far as it is above the capacity it does not matter
 * @param decision  written on every result; may be NULL. `granted` is what was taken; denied, the wait is that of min.
 *                  Where the limit's on_full or on_store_error allows, max is granted, up to the capacity
 * @return as spile_take of min; SPILE_EINVAL also when max is below min; SPILE_ENOTSUP, the store does not know how
 *
 * May block for the store's timeout. Thread-safety: safe.
 */
int spile_take_up_to(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t min,
                     int64_t max, spile_decision *decision) SPILE_MUST_USE;

/**
 * Takes the same number of tokens from several buckets in one atomic step: the most, from `min` to `max`, that all of
 * them have. The requests' own cost is not used, and no two of them may name the same bucket (SPILE_EINVAL).
 *
 * @return as spile_take_up_to, decided as spile_take_all does
 */
int spile_take_up_to_all(spile_limiter *limiter, const spile_request *requests, size_t n, int64_t min, int64_t max,
                         spile_decision *decision, spile_decision *each) SPILE_MUST_USE;

#define SPILE_FOREVER (-1)

/**
 * Takes as soon as the tokens are there: sleeps exactly as long as a denial says and asks again, since others take too.
 *
 * @param max_ms  longest wait in all, 0 or more, or SPILE_FOREVER. A wait that would pass it ends at once.
 * @return as spile_take; SPILE_DENIED when max_ms would not be enough, with the wait that is needed in `decision`. What
 *         the store did not decide (a policy, no room) is not waited for, also with SPILE_FOREVER: it is returned at
 *         once, denied with a retry_after_ms of SPILE_UNKNOWN, so a loop around this call needs a pause of its own
 *
 * Counters, metrics and hooks hear of it once, by how it ended.
 * Blocks for max_ms and the store's timeout. Who waits is not queued: a steady stream of others may win every time.
 */
int spile_wait(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
               int64_t max_ms, spile_decision *decision) SPILE_MUST_USE;

/** spile_wait for several requests, decided as spile_take_all does. */
int spile_wait_all(spile_limiter *limiter, const spile_request *requests, size_t n, int64_t max_ms,
                   spile_decision *decision, spile_decision *each) SPILE_MUST_USE;

/* ---- Settling ---- */

/*
 * For a cost that is known only afterwards: take an estimate, do the work, and refund or charge the difference
 * (docs/examples/llm_budget.c). These two are never refused, and so they admit nobody.
 */

/**
 * Charges `cost` tokens to `key`'s bucket under `limit`, whether it has them or not.
 *
 * The level may fall below zero by the limit's debt. What would take it deeper is not charged, and `uncharged` says how
 * many whole tokens that is, rounded up; without a debt a charge beyond empty leaves the bucket empty. Of a window the
 * tokens count in the window of now as far as it has any left; the rest is not charged.
 *
 * @param key       any bytes; not kept
 * @param key_len   bytes, 1 to SPILE_KEY_LEN_MAX
 * @param cost      tokens, 0 or more, also above the capacity
 * @param decision  written on every result; may be NULL. `remaining` and `reset_after_ms` are what is left afterwards
 * @return SPILE_ALLOWED, charged as far as the above goes; SPILE_EINVAL, as spile_take; SPILE_EUNAVAILABLE, the store
 *         did not answer by the deadline, whatever on_store_error says: `store_error` and `detail` say why, and whether
 *         it may have been charged. It is never sent twice, and whoever sends it again may charge twice; SPILE_EFULL,
 *         no room for a new bucket, whatever on_full says, and nothing is charged; SPILE_ENOTSUP, the store does not
 *         know how; SPILE_EFORK
 *
 * May block for the store's timeout. Thread-safety: safe. Counted as `charged`, not as a take.
 */
int spile_charge(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
                 spile_decision *decision);

/**
 * Charges several buckets in one atomic step, each its own cost and as far as it goes; costs of one bucket are summed.
 *
 * @param decision  of the limit with the smallest remaining, then the longest reset, then the first; `uncharged` is the
 *                  largest of all
 * @param each      NULL, or n decisions: what each request's own limit says
 * @return as spile_charge
 */
int spile_charge_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                     spile_decision *each);

/**
 * Gives `cost` tokens back to `key`'s bucket under `limit`, up to its capacity: what is more than it lacks is lost. A
 * bucket that is full then is removed from the store.
 *
 * fixed_window and sliding_window give back what the window of now counts, and nothing that an older one gave: a refund
 * belongs into the window of its take, and whoever sends it later takes from the count of the others. sliding_log gives
 * back the newest tokens. Parameters and results as spile_charge, but that a refund needs no room; `uncharged` is 0.
 * Counted as `refunded`.
 */
int spile_refund(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
                 spile_decision *decision);

/** Gives back to several buckets in one atomic step, each its own cost. As spile_charge_all. */
int spile_refund_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                     spile_decision *each);

/* ---- Housekeeping ---- */

/**
 * Forgets `key`'s bucket under `limit`: it is full again.
 *
 * @param error  may be NULL
 * @return SPILE_OK, also when there was none; SPILE_EINVAL; SPILE_EUNAVAILABLE; SPILE_EFORK
 */
int spile_clear(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, spile_error *error);

typedef enum spile_clean_what {
  SPILE_CLEAN_FULL = 1,      /* buckets that are full again; changes no decision */
  SPILE_CLEAN_PREFIX = 2,    /* every bucket of this limiter's key prefix whose time was given (options.now_ms) */
  SPILE_CLEAN_SIMULATED = 3, /* every bucket in the store whose time was given, whatever its prefix */
} spile_clean_what;

/**
 * Removes buckets, a few at a time, until none of that kind is left; the deadline is for each step, not for all.
 *
 * @param error  may be NULL
 * @return SPILE_OK; SPILE_EINVAL; SPILE_ENOTSUP, the store does not know how; SPILE_EUNAVAILABLE; SPILE_EFORK
 */
int spile_clean(spile_limiter *limiter, spile_clean_what what, spile_error *error);

/* One stored bucket, as spile_each shows it. */
typedef struct spile_stored {
  const void *key; /* NULL where the store keeps only a hash of a long key */
  size_t key_len;
  const char *name; /* not NUL-terminated; NULL where the key is hashed */
  size_t name_len;
  const char *algorithm; /* as limits are written: "token_bucket", … */
  int64_t capacity;      /* the numbers it was last written under … */
  int64_t refill_tokens; /* … in lowest terms */
  int64_t refill_period_ms;
  int64_t remaining;      /* whole tokens now */
  int64_t reset_after_ms; /* until it is full; 0 when it is */
  bool simulated;         /* its time was given */
} spile_stored;

/** Return false to end the walk. The strings live for the call. */
typedef bool spile_visitor(void *user, const spile_stored *stored);

/**
 * Shows every stored bucket under this limiter's key prefix; with a store's own clock also simulated ones.
 *
 * Buckets that come or go meanwhile may be missed or shown twice.
 *
 * @return SPILE_OK; SPILE_EINVAL; SPILE_ENOTSUP; SPILE_EUNAVAILABLE; SPILE_EFORK
 */
int spile_each(spile_limiter *limiter, spile_visitor *visit, void *user, spile_error *error);

typedef enum spile_breaker_state {
  SPILE_BREAKER_CLOSED = 0, /* every take asks the store; also without a breaker */
  SPILE_BREAKER_OPEN = 1,   /* the store is left alone, or only not asked to charge, or only not by impatient limits */
  SPILE_BREAKER_HALF_OPEN = 2, /* one take asks, the others do not wait for it */
} spile_breaker_state;

#define SPILE_REASONS_MAX 32 /* numbers of reasons are below this */

/* What a limiter did since it was opened. */
typedef struct spile_counters {
  size_t struct_size; /* set by SPILE_COUNTERS_INIT */
  uint64_t allowed;   /* takes by outcome, whoever decided; a wait is one take; peeks are not counted */
  uint64_t denied;
  uint64_t never;
  uint64_t full;          /* of these and the next, takes that a new key's on_full decided or failed */
  uint64_t unavailable;   /* takes without an answer: with the first three that is all takes */
  uint64_t policy_open;   /* of the above, takes that on_store_error allowed ... */
  uint64_t policy_closed; /* ... and denied */
  uint64_t store_errors[SPILE_REASONS_MAX]; /* takes that the store did not answer, by spile_reason; of them SUBJECT are
                                               those about which it could not be asked */
  int breaker;                              /* a spile_breaker_state, now */
  uint64_t breaker_opened;                  /* how often it opened, a failed probe included */
  uint64_t charged;                         /* calls of spile_charge that went through, which are no takes … */
  uint64_t refunded;                        /* … of spile_refund … */
  uint64_t unsettled;                       /* … and those of both that the store did not answer or had no room for */
} spile_counters;

#define SPILE_COUNTERS_INIT \
  { sizeof(spile_counters), 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0, 0 }

/** Copies the counters. @return SPILE_OK; SPILE_EINVAL; SPILE_EFORK */
int spile_count(spile_limiter *limiter, spile_counters *out);

#ifdef __cplusplus
}
#endif
#endif
