/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entries of a limits file for programs: an object in a line for each.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/allowance.h"
#include "cli/explain.h"
#include "cli/output.h"
#include "core/algorithm.h"

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
