/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/explain.h"

#include <inttypes.h>
#include <string.h>

#include "cli/allowance.h"
#include "cli/output.h"
#include "core/checked.h"

/* For people at a terminal. */
static void put_text(const char *text) {
  output_escaped(text, strlen(text));
}

/* ---- Numbers ---- */

static void put_requests(int64_t n) {
  output("%" PRId64 " request%s", n, n == 1 ? "" : "s");
}

void explain_put_rate(const allowance *a) {
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
static void put_kind(const spile__key_part *part, explain_name_put *put_name) {
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
    put_name(part->header);
    return;
  case SPILE__KEY_ROUTE:
    output("route");
    return;
  case SPILE__KEY_GLOBAL:
    output("server");
    return;
  }
}

void explain_put_chain(const spile__key_chain *chain, explain_name_put *put_name) {
  for (size_t i = 0; i < chain->n; i++) {
    output("%s", i > 0 ? ", else " : "");
    if (chain->parts[i].kind == SPILE__KEY_ROUTE || chain->parts[i].kind == SPILE__KEY_GLOBAL)
      output("all callers together");
    else
      put_kind(&chain->parts[i], put_name);
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
      put_kind(&chain->parts[i], put_text);
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

/* When windows begin, which no caller chooses. */
static void explain_window(spile_algorithm algorithm) {
  if (algorithm == SPILE_FIXED_WINDOW)
    output(
        ". The windows are the same for all callers: they begin at whole multiples of that time since 1970, in UTC.\n");
  else if (algorithm == SPILE_SLIDING_WINDOW)
    output(", as estimated: what passed in the window before is taken to have come evenly.\n");
  else
    output(", whenever that begins.\n");
}

static void explain_numbers(const spile__route_limit *limit) {
  allowance a = allowance_of(limit);
  output("   At most ");
  put_requests(a.burst);
  if (a.window) {
    output(" in ");
    output_duration(a.period_ms);
    explain_window(spile_limit_spec(limit->limit)->algorithm);
  } else {
    output(" at once; then ");
    explain_put_rate(&a);
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
  if (a.meets)
    output(", late in one window and early in the next");
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
    output("   This is a shadow limit: what it would deny is counted and passes.\n");
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

/* How many entries of "skip" may exempt a request of this route, and whether one does so whoever asks. */
static size_t skips_of(const spile_limits *limits, const char *asked, bool *always) {
  size_t n = 0;
  *always = false;
  for (size_t i = 0; i < limits->skip_count; i++) {
    const spile__skip *skip = &limits->skips[i];
    if (skip->route != NULL && !spile__route_matches(limits, skip->route, NULL, asked))
      continue;
    *always = *always || (!skip->has_network && skip->header == NULL);
    n++;
  }
  return n;
}

/* What has to let a request pass, and what only looks. */
static void explain_counts(const spile_route *route) {
  size_t shadow = 0;
  for (size_t i = 0; i < route->n; i++)
    shadow += route->limits[i].shadow ? 1 : 0;
  size_t in_force = route->n - shadow;
  if (route->word == SPILE_ROUTE_UNLIMITED)
    output(": no limit of its own%s.", in_force > 0 ? ", but those for every request" : "");
  else if (in_force > 1)
    output(": %zu limits. A request passes when all of them let it; else none of them counts it.", in_force);
  else if (shadow > 0)
    output(": %s in force.", in_force > 0 ? "1 limit" : "no limit");
  else
    output(".");
  if (shadow > 0)
    output(" %zu shadow limit%s nobody.", shadow, shadow == 1 ? " denies" : "s deny");
  output("\n");
}

void explain_route(const spile_limits *limits, const spile_route *route, const char *asked, const char *tier) {
  bool exempt;
  size_t skips = skips_of(limits, asked, &exempt);
  put_text(asked);
  if (tier != NULL) {
    output(" of tier ");
    put_text(tier);
  }
  if (exempt) {
    output(" is exempt from everything: an entry of \"skip\" has its route, whoever asks.\n");
    return;
  }
  output(" meets the entry \"");
  put_text(route->text);
  const spile__tier *of = explain_tier_of(limits, route);
  output("\"%s", of->name != NULL ? " of that tier" : tier != NULL ? " of all tiers" : "");
  if (route->word == SPILE_ROUTE_BLOCKED)
    output(": blocked, nobody passes.\n");
  else
    explain_counts(route);
  for (size_t i = 0; i < route->n; i++)
    explain_limit(limits, route, &route->limits[i], i + 1);
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
    explain_put_rate(&a);
  output("%s; %s%" PRId64 " in the first minute%s; full after ", a.spaced ? ", spaced" : "", a.window ? "at most " : "",
         a.first_minute, a.meets ? ", where windows meet" : "");
  output_duration(spile_limit_full_time_ms(limit->limit));
  int64_t debt = spile_limit_spec(limit->limit)->shape.debt;
  if (debt > 0)
    output("; debt of %" PRId64 " at most", debt);
  output("; per ");
  explain_put_chain(&limit->chain, put_text);
  spile_on_store_error policy = spile_limit_spec(limit->limit)->on_store_error;
  output("; %s without the store%s\n",
         policy == SPILE_ON_STORE_ERROR_OPEN     ? "open"
         : policy == SPILE_ON_STORE_ERROR_CLOSED ? "closed"
                                                 : "fails",
         limit->shadow ? "; shadow" : "");
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

const spile_route *explain_route_with_always(const spile_limits *limits) {
  for (size_t i = 0; i < limits->base.route_count; i++) {
    if (limits->base.routes[i].word != SPILE_ROUTE_BLOCKED)
      return &limits->base.routes[i];
  }
  return NULL;
}

void explain_all(const spile_limits *limits) {
  const spile_route *any = explain_route_with_always(limits);
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
