// SPDX-License-Identifier: Apache-2.0
//
// A C++17 program of a user: both shelves of headers and the helpers for tests, the macros, and a few takes.
#include <spile/spile.h>
#include <spile/sys/store.h>
#include <spile/testing.h>

#include <cstdio>
#include <memory>
#include <string_view>

namespace {

struct limiter_close {
  void operator()(spile_limiter *limiter) const {
    spile_close(limiter);
  }
};

struct limit_unref {
  void operator()(spile_limit *limit) const {
    spile_limit_unref(limit);
  }
};

} // namespace

int main(int argc, char **argv) {
  spile_error error = {};
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = 3;
  def.refill_tokens = 1;
  def.refill_period_ms = 2000;
  spile_limit *made = nullptr;
  if (spile_limit_create(&made, &def, &error) != SPILE_OK) {
    std::fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  std::unique_ptr<spile_limit, limit_unref> limit(made);

  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = 2000;
  spile_limiter *opened = nullptr;
  if (spile_open(&opened, argc > 1 ? argv[1] : "memory:", &options, &error) != SPILE_OK) {
    std::fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  std::unique_ptr<spile_limiter, limiter_close> limiter(opened);

  constexpr std::string_view key = "alice";
  for (int i = 0; i < 5; i++) {
    spile_decision decision;
    int result = spile_take(limiter.get(), limit.get(), key.data(), key.size(), 1, &decision);
    if (result == SPILE_ALLOWED)
      std::printf("allowed, %lld left\n", static_cast<long long>(decision.remaining));
    else if (result == SPILE_DENIED)
      std::printf("denied, try again in %lld ms\n", static_cast<long long>(decision.retry_after_ms));
    else
      return 1;
  }
  spile_counters counters = SPILE_COUNTERS_INIT;
  return spile_count(limiter.get(), &counters) == SPILE_OK && counters.allowed == 3 && counters.denied == 2 ? 0 : 1;
}
