/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/explain.h"

#include <inttypes.h>
#include <string.h>

#include "cli/output.h"
#include "core/algorithm.h"
#include "core/checked.h"

/* ---- Numbers ---- */

enum { MINUTE_MS = 60000 };

/* What a limit lets pass, in requests. */
typedef struct allowance {
  int64_t burst;        /* at once */
  int64_t count;        /* steadily so many … */
  int64_t period_ms;    /* … in this time */
  int64_t first_minute; /* at most */
  bool window;          /* counts in windows, and does not refill */
  bool spaced;          /* tells how long to hold back what it admits */
} allowance;

/*
 * Whole requests that a sliding window W long can let pass in so many windows, at most. When b pass in one, whose
 * tokens c·b weigh c·b/W at the last millisecond of the next, that one has at most ⌊(C·W − c·b) / (c·W)⌋, which falls
 * by no more than b grows; so two windows give most when the first gives all it can. C·W is below 2^53.
 */
static int64_t sliding_whole(const spile_shape *shape, int64_t cost, int64_t windows) {
  int64_t burst = shape->capacity / cost;
  int64_t next = (shape->capacity * shape->period_ms - cost * burst) / (cost * shape->period_ms);
  return spile__add_saturate(spile__mul_saturate(burst, spile__div_ceil(windows, 2)),
                             spile__mul_saturate(next, windows / 2));
}

/*
 * Of windows W long, at most: 60,000 milliseconds touch ⌈59,999 / W⌉ + 1 of them, and each fixed one gives C. A sliding
 * window that began with a tokens of the window before it gives C − a·(W − t)/W until t, so that both have given at
 * most C + C·t/W; and no more than whole requests. Of a log no W holds more than C.
 */
static int64_t window_first_minute(const char *algorithm, const spile_shape *shape, int64_t cost) {
  int64_t touched = spile__div_ceil(MINUTE_MS - 1, shape->period_ms) + 1;
  int64_t burst = shape->capacity / cost;
  if (strcmp(algorithm, "fixed_window") == 0)
    return spile__mul_saturate(burst, touched);
  if (strcmp(algorithm, "sliding_log") == 0)
    return spile__mul_saturate(burst, spile__div_ceil(MINUTE_MS, shape->period_ms));
  int64_t more = spile__mul_saturate(shape->capacity, MINUTE_MS - 1) / shape->period_ms;
  int64_t tokens = spile__add_saturate(shape->capacity, more) / cost;
  int64_t whole = sliding_whole(shape, cost, touched);
  return whole < tokens ? whole : tokens;
}

/*
 * In the minute [0, 60,000) a bucket that is full at 0 has C + N·59,999/P tokens to give, if each is taken as soon as
 * it is there. Of requests that cost c that is ⌊(C·P + N·59,999) / (P·c)⌋: C·P is below 2^53 and N below 2^44, so the
 * sum is below 2^61, and P·c is at most P·C.
 */
static allowance allowance_of(const spile__route_limit *limit) {
  const spile_spec *spec = spile_limit_spec(limit->limit);
  const spile_shape *shape = &spec->shape;
  const char *algorithm = spile__algorithm_get(spec->algorithm)->name;
  allowance a = {.burst = shape->capacity / limit->cost,
                 .window = strcmp(algorithm, "token_bucket") != 0 && strcmp(algorithm, "leaky_bucket") != 0,
                 .spaced = strcmp(algorithm, "leaky_bucket") == 0};
  if (a.window) {
    a.count = a.burst;
    a.period_ms = shape->period_ms;
    a.first_minute = window_first_minute(algorithm, shape, limit->cost);
    return a;
  }
  int64_t request = shape->period_ms * limit->cost;
  int64_t divisor = spile__gcd(shape->refill, request);
  a.count = shape->refill / divisor;
  a.period_ms = request / divisor;
  a.first_minute = (shape->capacity * shape->period_ms + shape->refill * (MINUTE_MS - 1)) / request;
  return a;
}

static void put_requests(int64_t n) {
  output("%" PRId64 " request%s", n, n == 1 ? "" : "s");
}

/* "10 requests a second", "1 request every 2 s": several by the shortest unit that has a whole number, else as it is.
 */
static void put_rate(const allowance *a) {
  static const struct {
    const char *name;
    int64_t ms;
  } units[] = {{"a second", 1000}, {"a minute", 60000}, {"an hour", 3600000}, {"a day", 86400000}};
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && !a->window; i++) {
    if (a->count == 1 && a->period_ms > 1000 && a->period_ms % 1000 == 0 && a->period_ms != units[i].ms)
      continue;
    int64_t count = spile__mul_saturate(a->count, units[i].ms);
    if (count == INT64_MAX || count < a->period_ms || count % a->period_ms != 0)
      continue;
    put_requests(count / a->period_ms);
    output(" %s", units[i].name);
    return;
  }
  put_requests(a->count);
  output(" %s ", a->window ? "in" : "every");
  output_duration(a->period_ms);
}

/* ---- Whose ---- */

/* "tenant", "client address" … */
static void put_kind(const spile__key_part *part) {
  switch (part->kind) {
  case SPILE__KEY_TENANT:
    output("tenant");
    return;
  case SPILE__KEY_USER:
    output("user");
    return;
  case SPILE__KEY_API_KEY:
    output("API key");
    return;
  case SPILE__KEY_IP:
    output("client address");
    return;
  case SPILE__KEY_HEADER:
    output("value of the header ");
    output_escaped(part->header, strlen(part->header));
    return;
  case SPILE__KEY_ROUTE:
    output("route");
    return;
  case SPILE__KEY_GLOBAL:
    output("server");
    return;
  }
}

/* "tenant, else user, else client address"; what all share says so. */
static void put_chain(const spile__key_chain *chain) {
  for (size_t i = 0; i < chain->n; i++) {
    output("%s", i > 0 ? ", else " : "");
    if (chain->parts[i].kind == SPILE__KEY_ROUTE || chain->parts[i].kind == SPILE__KEY_GLOBAL)
      output("all callers together");
    else
      put_kind(&chain->parts[i]);
  }
}

static void explain_chain(const spile__key_chain *chain) {
  for (size_t i = 0; i < chain->n; i++) {
    bool all = chain->parts[i].kind == SPILE__KEY_ROUTE || chain->parts[i].kind == SPILE__KEY_GLOBAL;
    output("%s", i == 0 ? "   " : " Without one, ");
    if (all) {
      output("%sll callers have one allowance together", i == 0 ? "A" : "a");
    } else {
      output("%sach ", i == 0 ? "E" : "e");
      put_kind(&chain->parts[i]);
      output(" has an allowance of its own");
    }
    output(".");
  }
  output("\n");
}

/* ---- Which entry ---- */

const spile__tier *explain_tier_of(const spile_limits *limits, const spile_route *route) {
  for (size_t i = 0; i < limits->tier_count; i++) {
    const spile__tier *tier = &limits->tiers[i];
    if (route >= tier->routes && route < tier->routes + tier->route_count)
      return tier;
  }
  return &limits->base;
}

static void put_text(const char *text) {
  output_escaped(text, strlen(text));
}

/* The other entries of a tier that meet the same limit. */
static size_t put_sharers(const spile__tier *tier, const spile_route *route, const spile_limit *limit, size_t n) {
  for (size_t i = 0; i < tier->route_count; i++) {
    const spile_route *other = &tier->routes[i];
    bool shares = false;
    for (size_t j = 0; j < other->n; j++)
      shares |= other->limits[j].limit == limit;
    if (!shares || strcmp(other->text, route->text) == 0)
      continue;
    output("%s", n++ == 0 ? "   The allowance is shared with " : ", ");
    put_text(other->text);
  }
  return n;
}

/* ---- Sentences ---- */

static void explain_numbers(const spile__route_limit *limit) {
  allowance a = allowance_of(limit);
  output("   At most ");
  put_requests(a.burst);
  if (a.window) {
    output(" in ");
    output_duration(a.period_ms);
    output(".\n");
  } else {
    output(" at once; then ");
    put_rate(&a);
    output(".\n");
  }
  if (a.spaced)
    output("   What is admitted at once is to be served one by one at that rate: delay_ms says how long to hold each "
           "back.\n");
  if (limit->cost > 1)
    output("   (A request costs %" PRId64 " of the %" PRId64 " tokens that there are.)\n", limit->cost,
           spile_limit_capacity(limit->limit));
  int64_t debt = spile_limit_spec(limit->limit)->shape.debt;
  if (debt > 0)
    output("   What is charged afterwards may take it %" PRId64 " tokens below zero; it denies until they are back.\n",
           debt);
  output("   In the first minute at most ");
  put_requests(a.first_minute);
  output(" can pass");
  if (!a.window && a.first_minute > a.burst)
    output(": %" PRId64 " at once and %" PRId64 " as they come back", a.burst, a.first_minute - a.burst);
  output(".\n   Who has used all and then asks for nothing has the whole allowance again after ");
  output_duration(spile_limit_full_time_ms(limit->limit));
  output(".\n");
}

static void explain_policies(const spile_spec *spec) {
  const char *lost = "the request is refused with an error, for the server to handle";
  if (spec->on_store_error == SPILE_ON_STORE_ERROR_OPEN)
    lost = "requests pass, uncounted";
  if (spec->on_store_error == SPILE_ON_STORE_ERROR_CLOSED)
    lost = "requests are refused";
  output("   When the store does not answer");
  if (spec->timeout_ms > 0)
    output(" within %" PRId64 " ms", spec->timeout_ms);
  output(", %s.\n", lost);
  if (spec->on_full != SPILE_ON_FULL_CLOSED)
    output("   When the store has no room for a new caller, %s.\n", spec->on_full == SPILE_ON_FULL_OPEN
                                                                        ? "the request passes, uncounted"
                                                                        : "the request is refused with an error");
}

static void explain_limit(const spile_limits *limits, const spile_route *route, const spile__route_limit *limit,
                          size_t number) {
  output("%zu. ", number);
  put_text(spile_limit_name(limit->limit));
  output("%s\n", limit->always ? " (for every request, whatever its route)" : "");
  if (limit->shadow)
    output("   This limit only watches: what it would deny is counted and passes.\n");
  explain_numbers(limit);
  explain_chain(&limit->chain);
  if (limit->always) {
    output("   All routes draw on the same allowance.\n");
  } else if (put_sharers(&limits->base, route, limit->limit, 0) > 0) {
    output(".\n");
  } else if (strchr(route->text, '*') != NULL) {
    output("   All routes that match ");
    put_text(route->text);
    output(" draw on the same allowance.\n");
  } else if (route == explain_tier_of(limits, route)->fallback) {
    output("   All routes that have no entry draw on the same allowance.\n");
  }
  explain_policies(spile_limit_spec(limit->limit));
}

/* The entries of "skip" that may exempt a request of this route. */
static size_t skips_of(const spile_limits *limits, const char *asked) {
  size_t n = 0;
  for (size_t i = 0; i < limits->skip_count; i++) {
    const char *route = limits->skips[i].route;
    n += route == NULL || spile__route_matches(limits, route, NULL, asked) ? 1 : 0;
  }
  return n;
}

void explain_route(const spile_limits *limits, const spile_route *route, const char *asked, const char *tier) {
  put_text(asked);
  if (tier != NULL) {
    output(" of tier ");
    put_text(tier);
  }
  output(" meets the entry \"");
  put_text(route->text);
  const spile__tier *of = explain_tier_of(limits, route);
  output("\"%s", of->name != NULL ? " of that tier" : tier != NULL ? " of all tiers" : "");
  if (route->word == SPILE_ROUTE_BLOCKED)
    output(": blocked, nobody passes.\n");
  else if (route->word == SPILE_ROUTE_UNLIMITED)
    output(": no limit of its own%s.\n", route->n > 0 ? ", but those for every request" : "");
  else if (route->n > 1)
    output(": %zu limits. A request passes when all of them let it; else none of them counts it.\n", route->n);
  else
    output(".\n");
  for (size_t i = 0; i < route->n; i++)
    explain_limit(limits, route, &route->limits[i], i + 1);
  size_t skips = skips_of(limits, asked);
  if (skips > 0)
    output("%zu entr%s of \"skip\" may exempt it from everything.\n", skips, skips == 1 ? "y" : "ies");
}

/* ---- All entries ---- */

static void put_route(const spile__tier *tier, const spile_route *route) {
  put_text(route->text);
  if (tier->name != NULL) {
    output(" [");
    put_text(tier->name);
    output("]");
  }
}

static void line_of_limit(const spile__route_limit *limit) {
  allowance a = allowance_of(limit);
  put_requests(a.burst);
  output("%s", a.window ? " in " : " at once, then ");
  if (a.window)
    output_duration(a.period_ms);
  else
    put_rate(&a);
  output("; %s%" PRId64 " in the first minute; full after ", a.window ? "at most " : "", a.first_minute);
  output_duration(spile_limit_full_time_ms(limit->limit));
  output("; per ");
  put_chain(&limit->chain);
  spile_on_store_error policy = spile_limit_spec(limit->limit)->on_store_error;
  output("; %s without the store%s\n",
         policy == SPILE_ON_STORE_ERROR_OPEN     ? "open"
         : policy == SPILE_ON_STORE_ERROR_CLOSED ? "closed"
                                                 : "fails",
         limit->shadow ? "; only watches" : "");
}

static void lines_of_tier(const spile__tier *tier) {
  for (size_t i = 0; i < tier->route_count; i++) {
    const spile_route *route = &tier->routes[i];
    if (route->word != SPILE_ROUTE_LIMITED) {
      put_route(tier, route);
      output(": %s\n", route->word == SPILE_ROUTE_BLOCKED ? "blocked" : "unlimited");
    }
    for (size_t j = 0; j < route->n; j++) {
      if (route->limits[j].always)
        continue;
      put_route(tier, route);
      const char *name = spile_limit_name(route->limits[j].limit);
      if (strcmp(name, route->text) != 0) {
        output(" (");
        put_text(name);
        output(")");
      }
      output(": ");
      line_of_limit(&route->limits[j]);
    }
  }
}

/* Any entry that is not blocked has the limits of every request. */
static const spile_route *route_with_always(const spile_limits *limits) {
  for (size_t i = 0; i < limits->base.route_count; i++) {
    if (limits->base.routes[i].word != SPILE_ROUTE_BLOCKED)
      return &limits->base.routes[i];
  }
  return NULL;
}

void explain_all(const spile_limits *limits) {
  const spile_route *any = route_with_always(limits);
  for (size_t i = 0; any != NULL && i < any->n; i++) {
    if (!any->limits[i].always)
      continue;
    output("every request (");
    put_text(spile_limit_name(any->limits[i].limit));
    output("): ");
    line_of_limit(&any->limits[i]);
  }
  lines_of_tier(&limits->base);
  for (size_t i = 0; i < limits->tier_count; i++)
    lines_of_tier(&limits->tiers[i]);
}

/* ---- Markdown ---- */

/* As code, which more backticks than the text has anywhere begin and end; a bar would end the cell. */
static void put_code(const char *text) {
  size_t most = 0;
  for (const char *c = text; *c != '\0'; c++) {
    size_t run = strspn(c, "`");
    most = run > most ? run : most;
  }
  for (size_t i = 0; i <= most; i++)
    output("`");
  /* A blank beside the fence is no part of the code. */
  const char *blank = most > 0 ? " " : "";
  output("%s", blank);
  for (const char *c = text; *c != '\0'; c++) {
    if (*c == '|')
      output("\\|");
    else
      output_escaped(c, 1);
  }
  output("%s", blank);
  for (size_t i = 0; i <= most; i++)
    output("`");
}

static void row_begin(const char *route, const char *tier) {
  output("| ");
  if (route != NULL)
    put_code(route);
  else
    output("every request");
  output(" | ");
  if (tier != NULL)
    put_code(tier);
  output(" | ");
}

static void row_of_limit(const char *route, const char *tier, const spile__route_limit *limit) {
  if (limit->shadow)
    return;
  allowance a = allowance_of(limit);
  row_begin(route, tier);
  output("%" PRId64 " | ", a.burst);
  put_rate(&a);
  output("%s | %" PRId64 " | ", a.spaced ? ", spaced" : "", a.first_minute);
  put_chain(&limit->chain);
  const char *name = spile_limit_name(limit->limit);
  if (name[0] == '@') {
    output("; shared by all routes with ");
    put_code(name);
  }
  output(" |\n");
}

static void rows_of_tier(const spile__tier *tier) {
  for (size_t i = 0; i < tier->route_count; i++) {
    const spile_route *route = &tier->routes[i];
    if (route->word != SPILE_ROUTE_LIMITED) {
      row_begin(route->text, tier->name);
      output("%s | | | |\n", route->word == SPILE_ROUTE_BLOCKED ? "not available" : "no limit of its own");
    }
    for (size_t j = 0; j < route->n; j++) {
      if (!route->limits[j].always)
        row_of_limit(route->text, tier->name, &route->limits[j]);
    }
  }
}

void explain_markdown(const spile_limits *limits) {
  output("| Route | Tier | Requests at once | Then | In the first minute, at most | Counted by |\n"
         "|---|---|--:|---|--:|---|\n");
  const spile_route *any = route_with_always(limits);
  for (size_t i = 0; any != NULL && i < any->n; i++) {
    if (any->limits[i].always)
      row_of_limit(NULL, NULL, &any->limits[i]);
  }
  rows_of_tier(&limits->base);
  for (size_t i = 0; i < limits->tier_count; i++)
    rows_of_tier(&limits->tiers[i]);
  output("\n`*` stands for anything; `default` for every route that is not listed. All limits that a request meets "
         "apply\ntogether; a request that one of them denies is not counted by any.\n");
}

/* ---- JSON ---- */

static void json_of_chain(const spile__key_chain *chain) {
  static const char *const words[] = {
      [SPILE__KEY_TENANT] = "tenant", [SPILE__KEY_USER] = "user",   [SPILE__KEY_API_KEY] = "api_key",
      [SPILE__KEY_IP] = "ip",         [SPILE__KEY_ROUTE] = "route", [SPILE__KEY_GLOBAL] = "global"};
  output("\"key\":[");
  for (size_t i = 0; i < chain->n; i++) {
    const spile__key_part *part = &chain->parts[i];
    /* The letters of a header's name need no escape in JSON but the quotes, which it cannot have. */
    if (part->kind == SPILE__KEY_HEADER)
      output("%s\"header:%s\"", i > 0 ? "," : "", part->header);
    else
      output("%s\"%s\"", i > 0 ? "," : "", words[part->kind]);
  }
  output("]");
}

static void json_of_limit(const spile__route_limit *limit) {
  static const char *const store_words[] = {"fail", "fail", "open", "closed"};
  static const char *const full_words[] = {"closed", "open", "fail"};
  const spile_spec *spec = spile_limit_spec(limit->limit);
  allowance a = allowance_of(limit);
  output("{");
  output_json_member("name", spec->name, spec->name_len);
  output(",\"algorithm\":\"%s\",\"capacity\":%" PRId64 ",", spile__algorithm_get(spec->algorithm)->name,
         spec->shape.capacity);
  if (a.window)
    output("\"window_ms\":%" PRId64, a.period_ms);
  else
    output("\"refill_tokens\":%" PRId64 ",\"refill_period_ms\":%" PRId64, spec->shape.refill, spec->shape.period_ms);
  if (spec->shape.debt > 0)
    output(",\"debt\":%" PRId64, spec->shape.debt);
  output(",\"cost\":%" PRId64 ",", limit->cost);
  json_of_chain(&limit->chain);
  output(",\"on_store_error\":\"%s\",\"on_full\":\"%s\",\"timeout_ms\":", store_words[spec->on_store_error],
         full_words[spec->on_full]);
  output_json_number(spec->timeout_ms > 0 ? spec->timeout_ms : SPILE_UNKNOWN);
  output(",\"shadow\":%s,\"always\":%s,\"burst\":%" PRId64 ",\"first_minute\":%" PRId64 ",\"full_after_ms\":%" PRId64
         "}",
         limit->shadow ? "true" : "false", limit->always ? "true" : "false", a.burst, a.first_minute,
         spile_limit_full_time_ms(limit->limit));
}

static void json_of_route(const spile__tier *tier, const spile_route *route) {
  static const char *const words[] = {
      [SPILE_ROUTE_LIMITED] = "limited", [SPILE_ROUTE_UNLIMITED] = "unlimited", [SPILE_ROUTE_BLOCKED] = "blocked"};
  output("{");
  output_json_member("route", route->text, strlen(route->text));
  output(",");
  if (tier->name != NULL)
    output_json_member("tier", tier->name, strlen(tier->name));
  else
    output("\"tier\":null");
  output(",\"word\":\"%s\",\"limits\":[", words[route->word]);
  for (size_t i = 0; i < route->n; i++) {
    output("%s", i > 0 ? "," : "");
    json_of_limit(&route->limits[i]);
  }
  output("]}\n");
}

void explain_json(const spile_limits *limits) {
  for (size_t i = 0; i < limits->base.route_count; i++)
    json_of_route(&limits->base, &limits->base.routes[i]);
  for (size_t t = 0; t < limits->tier_count; t++) {
    for (size_t i = 0; i < limits->tiers[t].route_count; i++)
      json_of_route(&limits->tiers[t], &limits->tiers[t].routes[i]);
  }
}

void explain_json_route(const spile_limits *limits, const spile_route *route) {
  json_of_route(explain_tier_of(limits, route), route);
}
