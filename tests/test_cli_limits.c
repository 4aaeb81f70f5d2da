/* SPDX-License-Identifier: Apache-2.0 */
/*
 * take, peek and clear by a limits file, as a shell sees them. Buckets refill at 1 token an hour where a test looks at
 * what is left, so that how long the test takes does not matter.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(cli_limits, .fini = run_finish);

/* The file that all tests here ask. */
static const char *site(void) {
  return data_path("limits/command.json");
}

/* ---- Whose bucket under which limit ---- */

Test(cli_limits, a_take_charges_the_limit_of_its_route_for_who_asks) {
  RUN("take", "tenant=acme,ip=203.0.113.9", "--limits", site(), "--route", "post /search/?q=1");
  expect_status(0);
  expect_contains(run.out, "allowed: 2 of 3 left, full in ");
  cr_assert(eq(str, run.err, ""));
  RUN("take", "tenant=acme", "--limits", site(), "--route", "GET /other", "--json");
  expect_status(0);
  expect_contains(run.out, "{\"outcome\":\"allowed\",\"capacity\":3,\"remaining\":1,\"retry_after_ms\":0,");
  expect_contains(run.out, ",\"decided_by\":\"store\"}\n");
  RUN("take", "ip=203.0.113.9", "--limits", site(), "--route", "GET /other", "--json");
  expect_contains(run.out, "\"remaining\":2,");
  /* A bare KEY is the tenant, with which the chain begins. */
  RUN("take", "acme", "--limits", site(), "--route", "GET /other", "--json");
  expect_contains(run.out, "\"remaining\":0,");
  RUN("take", "acme", "--limits", site(), "--route", "GET /other", "--json");
  expect_status(1);
  expect_contains(run.out, "{\"outcome\":\"denied\",\"capacity\":3,\"remaining\":0,\"retry_after_ms\":3");
  /* The tier's numbers are for the same bucket. */
  RUN("peek", "acme", "--limits", site(), "--route", "GET /other", "--tier", "pro", "--json");
  expect_contains(run.out, "{\"outcome\":\"denied\",\"capacity\":30,\"remaining\":0,");
}

Test(cli_limits, the_cost_is_that_of_the_route_unless_one_is_given) {
  RUN("take", "acme", "--limits", site(), "--route", "POST /export");
  expect_contains(run.out, "allowed: 6 of 10 left, full in ");
  RUN("take", "acme", "--limits", site(), "--route", "POST /export", "--cost", "1");
  expect_contains(run.out, "allowed: 5 of 10 left, full in ");
  RUN("peek", "acme", "--limits", site(), "--route", "POST /export");
  expect_status(0);
  RUN("peek", "acme", "--limits", site(), "--route", "POST /export", "--cost", "6");
  expect_status(1);
  expect_contains(run.out, "denied: 5 of 10 left, try again in ");
  RUN("take", "acme", "--limits", site(), "--route", "POST /export", "--cost", "11");
  expect_status(1);
  expect_out("never: a cost of 11 is more than the capacity of 10\n");
}

Test(cli_limits, several_limits_are_one_decision_that_names_its_limit) {
  for (int i = 0; i < 3; i++) {
    RUN("take", i == 0 ? "tenant=a" : "tenant=b", "--limits", site(), "--route", "POST /both", "--json");
    expect_status(0);
    expect_contains(run.out, ",\"decided_by\":\"store\",\"limit\":\"POST /both#all\"}\n");
  }
  RUN("take", "tenant=a", "--limits", site(), "--route", "POST /both");
  expect_status(1);
  expect_contains(run.out, "denied: 0 of 3 left under POST /both#all, try again in ");
  /* The limit that all share is full again for whoever asks. All or nothing: the hour of a was charged once. */
  RUN("clear", "tenant=c", "--limits", site(), "--route", "POST /both");
  expect_status(0);
  expect_out("cleared\n");
  RUN("peek", "tenant=a", "--limits", site(), "--route", "POST /both", "--json", "--cost", "4");
  expect_contains(run.out, "{\"outcome\":\"never\",\"capacity\":3,\"remaining\":3,");
  RUN("take", "tenant=a", "--limits", site(), "--route", "POST /both", "--json", "--cost", "3");
  expect_status(0);
  RUN("clear", "tenant=c", "--limits", site(), "--route", "POST /both", "--json");
  expect_out("{\"outcome\":\"cleared\"}\n");
  RUN("peek", "tenant=a", "--limits", site(), "--route", "POST /both", "--cost", "2");
  expect_contains(run.out, "denied: 1 of 5 left under POST /both#hour, try again in ");
}

Test(cli_limits, buckets_are_under_the_key_prefix_of_the_file) {
  RUN("take", "acme", "--limits", site(), "--route", "GET /");
  RUN("show");
  expect_out("");
  const char *own = own_file("rl.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"capacity\":3,"
                                        "\"refill\":\"1/h\"}}}");
  RUN("take", "acme", "--limits", own, "--route", "GET /");
  expect_contains(run.out, "allowed: 2 of 3 left");
  RUN("show");
  expect_contains(run.out, "tenant=acme\tdefault\t1/h,capacity=3\t2 left, full in ");
}

Test(cli_limits, show_lists_what_is_under_the_key_prefix_of_a_file) {
  RUN("take", "acme", "--limits", site(), "--route", "GET /");
  RUN("show", "--limits", site());
  expect_status(0);
  expect_contains(run.out, "tenant=acme\tdefault\t1/h,capacity=3\t2 left, full in ");
  cr_assert(eq(str, run.err, ""));
  RUN("show", "tenant=acme", "--limits", site(), "--json");
  expect_contains(run.out, "{\"key\":\"tenant=acme\",\"limit\":\"default\",");
  RUN("show", "tenant=other", "--limits", site());
  expect_out("");
  RUN("show", "--limits", data_path("limits/faults.json"));
  expect_refusal(2, "faults.json:2:3: on_store_error: \"opne\" is not one of the words; ");
}

Test(cli_limits, every_verb_works_under_a_key_prefix_that_is_given) {
  RUN("take", "me", "--limit", "5/h", "--key-prefix", "shop", "--cost", "3");
  expect_contains(run.out, "allowed: 2 of 5 left");
  RUN("peek", "me", "--limit", "5/h", "--cost", "5");
  expect_out("allowed: 5 of 5 left, full\n");
  RUN("peek", "me", "--limit", "5/h", "--key-prefix=shop", "--cost", "2");
  expect_contains(run.out, "allowed: 2 of 5 left");
  RUN("charge", "me", "--limit", "5/h", "--key-prefix", "shop");
  expect_contains(run.out, "charged: 1 of 5 left");
  RUN("refund", "me", "--limit", "5/h", "--key-prefix", "shop", "--cost", "2");
  expect_contains(run.out, "refunded: 3 of 5 left");
  RUN("show");
  expect_out("");
  RUN("show", "--key-prefix", "shop");
  expect_contains(run.out, "me\tdefault\t1/12m,capacity=5\t3 left, full in ");
  RUN("clear", "me", "--limit", "5/h");
  RUN("show", "--key-prefix", "shop");
  expect_contains(run.out, "3 left");
  RUN("clear", "me", "--limit", "5/h", "--key-prefix", "shop");
  expect_out("cleared\n");
  RUN("show", "--key-prefix", "shop");
  expect_out("");
}

Test(cli_limits, a_key_prefix_that_is_given_wins_over_the_file) {
  RUN("take", "acme", "--limits", site(), "--route", "GET /", "--key-prefix", "trial");
  expect_contains(run.out, "allowed: 2 of 3 left");
  RUN("show", "--limits", site());
  expect_out("");
  RUN("show", "--limits", site(), "--key-prefix", "trial");
  expect_contains(run.out, "tenant=acme\tdefault\t");
  RUN("clear", "acme", "--limits", site(), "--route", "GET /", "--key-prefix", "trial");
  RUN("show", "--key-prefix", "trial");
  expect_out("");
}

Test(cli_limits, a_key_prefix_that_no_key_can_have_is_refused_with_what_it_may_be) {
  static const char longest[] = "0123456789012345678901234567890123456789012345678901234567890123";
  static const char longer[] = "01234567890123456789012345678901234567890123456789012345678901234";
  static const char *const bad[] = {"", "a b", "shop:", "{shop}", "\xc3\xbc", longer};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    RUN("take", "me", "--limit", "5/h", "--key-prefix", bad[i]);
    expect_failure(2, "--key-prefix is none that keys can have; write 1 to 64 of A-Z a-z 0-9 - . _ ~, such as "
                      "--key-prefix shop\n");
  }
  RUN("take", "me", "--limit", "5/h", "--key-prefix", longest);
  expect_status(0);
  RUN("clear", "--simulated", "--key-prefix", "shop");
  expect_failure(2, "clear --simulated takes neither KEY nor limits nor --key-prefix: ");
}

Test(cli_limits, clear_forgets_what_the_take_charged_and_nothing_else) {
  RUN("take", "ip=192.0.2.1", "--limits", site(), "--route", "POST /login", "--cost", "2");
  RUN("take", "ip=192.0.2.2", "--limits", site(), "--route", "POST /login", "--cost", "2");
  RUN("clear", "ip=192.0.2.1", "--limits", site(), "--route", "POST /login");
  expect_status(0);
  RUN("peek", "ip=192.0.2.1", "--limits", site(), "--route", "POST /login");
  expect_out("allowed: 2 of 2 left, full\n");
  RUN("peek", "ip=192.0.2.2", "--limits", site(), "--route", "POST /login");
  expect_status(1);
  RUN("clear", "tenant=acme", "--limits", site(), "--route", "POST /login");
  expect_failure(2, "KEY has nothing that the limit @login is kept by (ip); write KIND=VALUE");
  RUN("clear", "acme", "--limits", site(), "--route", "GET /health");
  expect_status(0);
}

Test(cli_limits, clear_forgets_the_buckets_of_shadow_limits_too) {
  const char *own = own_file("own.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"capacity\":3,"
                                         "\"refill\":\"1/h\",\"shadow\":true}}}");
  RUN("take", "acme", "--limits", own, "--route", "GET /");
  RUN("show");
  expect_contains(run.out, "tenant=acme\tdefault\t");
  RUN("clear", "acme", "--limits", own, "--route", "GET /");
  RUN("show");
  expect_out("");
}

Test(cli_limits, a_key_lacking_what_a_limit_is_kept_by_is_a_usage_error) {
  RUN("take", "tenant=acme", "--limits", site(), "--route", "POST /login");
  expect_failure(2, "KEY has nothing that the limit @login is kept by (ip); write KIND=VALUE of one of them");
  RUN("take", "alice", "--limits", site(), "--route", "POST /login");
  expect_failure(2, "KEY is bare, so it is the first of what the limit @login is kept by (ip), and an ip must be an "
                    "address; ");
  RUN("take", "192.0.2.1", "--limits", site(), "--route", "POST /login");
  expect_status(0);
  RUN("take", "header:X-Client=one", "--limits", site(), "--route", "GET /client", "--json");
  expect_contains(run.out, "\"remaining\":0,");
  RUN("take", "header:x-client=two", "--limits", site(), "--route", "GET /client", "--json");
  expect_contains(run.out, "\"outcome\":\"allowed\"");
  RUN("take", "tenant=acme", "--limits", site(), "--route", "GET /client", "--json");
  expect_contains(run.out, "\"outcome\":\"allowed\"");
  RUN("take", "tenant=other", "--limits", site(), "--route", "GET /client", "--json");
  expect_contains(run.out, "\"outcome\":\"denied\"");
}

Test(cli_limits, an_ip_that_is_no_address_is_told_as_such) {
  static const char *const wrong[] = {"ip=not-an-ip", "ip=203.0.113.256", "tenant=acme,ip=unknown", "ip=10.0.0.0/8"};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    RUN("take", wrong[i], "--limits", site(), "--route", "POST /login");
    expect_failure(2, "KEY: what ip= has is no address; write one such as ip=203.0.113.9 or ip=2001:db8::1\n");
  }
  RUN("clear", "ip=not-an-ip", "--limits", site(), "--route", "POST /login");
  expect_failure(2, "KEY: what ip= has is no address; ");
  RUN("take", "ip=[2001:db8::1]:80", "--limits", site(), "--route", "POST /login");
  expect_status(0);
}

/* ---- Words of the file ---- */

#define NO_NUMBERS "\"capacity\":null,\"remaining\":null,\"retry_after_ms\":null,\"reset_after_ms\":null,"

Test(cli_limits, blocked_unlimited_and_skipped_requests_ask_no_store) {
  static const struct {
    const char *key;
    const char *route;
    int status;
    const char *outcome;
    const char *words;
  } rows[] = {
      {"acme", "GET /admin/x", 1, "never", "never: the entry * /admin/* is blocked\n"},
      {"acme", "GET /health", 0, "allowed", "allowed: the entry GET /health has no limit in force\n"},
      {"ip=10.1.2.3", "GET /admin/x", 0, "allowed", "allowed: the file skips this request\n"},
      {"header:X-Probe=1", "POST /login", 0, "allowed", "allowed: the file skips this request\n"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    /* Nobody listens there. */
    static const char *const verbs[] = {"take", "peek"};
    for (size_t j = 0; j < 2; j++) {
      RUN(verbs[j], rows[i].key, "--limits", site(), "--route", rows[i].route, "--store", "redis://127.0.0.1:1");
      expect_status(rows[i].status);
      expect_out(rows[i].words);
      cr_assert(eq(str, run.err, ""));
    }
    RUN("take", rows[i].key, "--limits", site(), "--route", rows[i].route, "--json", "--on-error", "fail", "--wait",
        "--store", "redis://127.0.0.1:1");
    expect_status(rows[i].status);
    char json[256];
    (void)snprintf(json, sizeof(json), "{\"outcome\":\"%s\"," NO_NUMBERS "\"decided_by\":\"limits\"}\n",
                   rows[i].outcome);
    expect_out(json);
  }
}

Test(cli_limits, a_shadow_limit_lets_everything_by) {
  for (int i = 0; i < 3; i++) {
    RUN("take", "acme", "--limits", site(), "--route", "GET /watched");
    expect_status(0);
    expect_out("allowed: the entry GET /watched has no limit in force\n");
  }
}

/* ---- When the store fails ---- */

Test(cli_limits, ops_04_without_an_answer_the_file_decides_unless_the_command_line_does) {
  static const struct {
    const char *route;
    const char *on_error; /* NULL: not given */
    int status;
    const char *outcome; /* NULL: none */
  } rows[] = {
      {"GET /", NULL, 0, "allowed"},       {"GET /", "closed", 1, "denied"},      {"GET /", "fail", 3, NULL},
      {"POST /login", NULL, 1, "denied"},  {"POST /login", "open", 0, "allowed"}, {"GET /fail", NULL, 3, NULL},
      {"GET /fail", "open", 0, "allowed"}, {"GET /fail", "closed", 1, "denied"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const char *on_error = rows[i].on_error != NULL ? "--on-error" : NULL;
    RUN("take", "ip=192.0.2.1", "--json", "--store", "redis://127.0.0.1:1", "--limits", site(), "--route",
        rows[i].route, on_error, rows[i].on_error);
    expect_status(rows[i].status);
    expect_contains(
        run.err, "spile: the store could not answer (connect): no connection: Connection refused; nothing was charged");
    if (rows[i].outcome == NULL) {
      expect_out("");
      continue;
    }
    char begin[128];
    (void)snprintf(begin, sizeof(begin), "{\"outcome\":\"%s\",\"capacity\":", rows[i].outcome);
    cr_assert(strncmp(run.out, begin, strlen(begin)) == 0, "%s", run.out);
    expect_contains(run.out, ",\"remaining\":null,\"retry_after_ms\":null,\"reset_after_ms\":null,\"decided_by\":"
                             "\"policy\",\"store_error\":\"connect\"}\n");
  }
  RUN("take", "ip=192.0.2.1", "--store", "redis://127.0.0.1:1", "--limits", site(), "--route", "POST /login");
  expect_out("denied: the store could not answer (connect)\n");
  RUN("clear", "ip=192.0.2.1", "--store", "redis://127.0.0.1:1", "--limits", site(), "--route", "POST /login");
  expect_failure(3, "(connect)");
}

Test(cli_limits, never_by_numbers_alone_says_that_the_store_could_not_answer) {
  RUN("take", "acme", "--limits", site(), "--route", "POST /export", "--cost", "11", "--store", "redis://127.0.0.1:1");
  expect_status(1);
  expect_out("never: a cost of 11 is more than the capacity of 10; the store could not answer (connect)\n");
}

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A server that takes connections and says nothing. @return its address */
static const char *silent_server(int *listener) {
  static char uri[256];
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", run_directory());
  *listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cr_assert(le(int, 0, *listener));
  cr_assert(eq(int, bind(*listener, (struct sockaddr *)&address, sizeof(address)), 0));
  cr_assert(eq(int, listen(*listener, 16), 0));
  (void)snprintf(uri, sizeof(uri), "redis+unix://%s", address.sun_path);
  return uri;
}

Test(cli_limits, a_timeout_of_the_command_line_wins_over_that_of_the_file) {
  int listener;
  const char *uri = silent_server(&listener);
  static const struct {
    const char *file_ms;
    const char *given_ms; /* NULL: none */
    int64_t least_ms;     /* how long it has to take; a thousand is the command's own default */
    int64_t most_ms;
  } rows[] = {{"1300", NULL, 1300, 20000}, {"30000", "50", 50, 20000}, {"10", "300", 300, 20000}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[256];
    (void)snprintf(text, sizeof(text),
                   "{\"on_store_error\":\"fail\",\"timeout_ms\":%s,\"limits\":{\"default\":{\"capacity\":3,\"refill\":"
                   "\"1/h\"}}}",
                   rows[i].file_ms);
    int64_t start_ms = now_ms();
    RUN("take", "acme", "--store", uri, "--limits", own_file("own.json", text), "--route", "GET /",
        rows[i].given_ms != NULL ? "--timeout" : NULL, rows[i].given_ms);
    int64_t took_ms = now_ms() - start_ms;
    expect_failure(3, ": no answer by the deadline");
    cr_assert(rows[i].least_ms <= took_ms && took_ms < rows[i].most_ms, "row %zu: %lld ms", i, (long long)took_ms);
  }
  (void)close(listener);
}

/* ---- Waiting ---- */

Test(cli_limits, wait_takes_what_comes_in_time_and_gives_up_at_once_on_the_rest) {
  RUN("take", "acme", "--limits", site(), "--route", "POST /soon");
  expect_status(0);
  RUN("take", "acme", "--limits", site(), "--route", "POST /soon", "--wait");
  expect_status(0);
  RUN("take", "acme", "--limits", site(), "--route", "POST /soon", "--wait=30s");
  expect_status(0);
  RUN("take", "acme", "--limits", site(), "--route", "POST /soon", "--wait=0ms", "--cost", "2");
  expect_status(1);
  RUN("take", "ip=192.0.2.1", "--limits", site(), "--route", "POST /login", "--cost", "2");
  int64_t start_ms = now_ms();
  RUN("take", "ip=192.0.2.1", "--limits", site(), "--route", "POST /login", "--wait=50m");
  expect_status(1);
  expect_contains(run.out, "denied: 0 of 2 left, try again in ");
  RUN("take", "ip=192.0.2.1", "--limits", site(), "--route", "POST /login", "--wait", "--cost", "3");
  expect_status(1);
  cr_assert(lt(i64, now_ms() - start_ms, 50000));
}

/* ---- API keys ---- */

Test(cli_limits, api_keys_need_the_secret_and_are_never_shown) {
  static const char key[] = "api_key=Zq7xVw3k";
  RUN("take", key, "--limits", site(), "--route", "GET /key");
  expect_failure(2, "the limit GET /key needs a secret to hash KEY with");
  expect_contains(run.err, "SPILE_SECRET_FILE");
  cr_assert(strstr(run.err, "Zq7xVw3k") == NULL, "%s", run.err);
  RUN("clear", key, "--limits", site(), "--route", "GET /key");
  expect_failure(2, "SPILE_SECRET_FILE");
  run_with(ARGS("take", key, "--limits", site(), "--route", "GET /key"), ARGS("SPILE_SECRET_FILE=/nonexistent/secret"),
           NULL);
  expect_status(2);
  expect_out("");
  /* Other limits do not need it. */
  RUN("take", key, "--limits", site(), "--route", "GET /health");
  expect_status(0);
}

#ifdef SPILE_TEST_SODIUM
Test(cli_limits, an_api_key_has_a_bucket_by_its_hash) {
  char secret[4200];
  (void)snprintf(secret, sizeof(secret), "SPILE_SECRET_FILE=%s",
                 own_file("secret", "TOPSECRET-TOPSECRET-TOPSECRET-TOPSECRET\n"));
  static const char key[] = "api_key=Zq7xVw3k";
  const char *const *env = ARGS(secret);
  const char *own = own_file("own.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"capacity\":2,"
                                         "\"refill\":\"1/h\",\"key\":[\"api_key\"]}}}");
  run_with(ARGS("take", key, "--limits", own, "--route", "GET /"), env, NULL);
  expect_contains(run.out, "allowed: 1 of 2 left, full in ");
  run_with(ARGS("take", key, "--limits", own, "--route", "GET /"), env, NULL);
  expect_contains(run.out, "allowed: 0 of 2 left, full in ");
  run_with(ARGS("take", "api_key=another", "--limits", own, "--route", "GET /"), env, NULL);
  expect_contains(run.out, "allowed: 1 of 2 left, full in ");
  RUN("show");
  expect_contains(run.out, "api_key=");
  cr_assert(strstr(run.out, "Zq7xVw3k") == NULL && strstr(run.out, "TOPSECRET") == NULL, "%s", run.out);
  run_with(ARGS("clear", key, "--limits", own, "--route", "GET /"), env, NULL);
  run_with(ARGS("peek", key, "--limits", own, "--route", "GET /"), env, NULL);
  expect_out("allowed: 2 of 2 left, full\n");
}
#endif

/* ---- The command line and the file ---- */

Test(cli_limits, the_faults_of_a_file_are_told_as_check_tells_them_and_no_store_is_asked) {
  RUN("check", data_path("limits/faults.json"));
  char *faults = run.err;
  run.err = NULL;
  static const char *const verbs[] = {"take", "peek", "clear"};
  for (size_t i = 0; i < 3; i++) {
    RUN(verbs[i], "acme", "--limits", data_path("limits/faults.json"), "--route", "GET /", "--store",
        "lmdb:/nonexistent/x");
    expect_status(2);
    expect_out("");
    cr_assert(eq(str, run.err, faults));
  }
  free(faults);
  /* Warnings are check's. */
  RUN("take", "acme", "--limits", data_path("limits/table.json"), "--route", "GET /");
  expect_status(0);
  cr_assert(eq(str, run.err, ""));
  RUN("take", "acme", "--limits", "/nonexistent/limits.json", "--route", "GET /");
  expect_refusal(2, "/nonexistent/limits.json:1:1: cannot read the file: No such file or directory; ");
}

Test(cli_limits, a_wrong_command_line_is_told) {
  const struct {
    const char *const *args;
    const char *message;
  } rows[] = {
      {ARGS("take", "a", "--limits", "x.json"), "write --route 'METHOD /path'"},
      {ARGS("take", "a", "--route", "GET /"), "write --limits FILE as well"},
      {ARGS("peek", "a", "--limit", "1/s", "--tier", "pro"), "write --limits FILE as well"},
      {ARGS("take", "a"), "take needs a limit; write --limit TEXT, such as --limit 10/s, or --limits FILE --route"},
      {ARGS("clear", "a", "--limits", "x.json", "--limit", "1/s", "--route", "GET /"), "exclude each other"},
      {ARGS("take", "a", "--limits", "x.json", "--route", "search"), "--route is not METHOD and PATH"},
      {ARGS("take", "a", "--limits", "x.json", "--route", "GET"), "--route is not METHOD and PATH"},
      {ARGS("take", "--limits", "x.json", "--route", "GET /"), "take needs one KEY"},
      {ARGS("take", "colour=red", "--limits", "x.json", "--route", "GET /"), "\"colour\" is no kind"},
      {ARGS("take", "a", "--limits", "x.json", "--limits", "y.json", "--route", "GET /"), "--limits is given twice"},
      {ARGS("clear", "--simulated", "--limits", "x.json"), "neither KEY nor limits"},
      {ARGS("simulate", "--limits", "x.json"), "simulate has no option --limits"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    run_with(rows[i].args, NULL, NULL);
    expect_failure(2, rows[i].message);
  }
  RUN("take", "acme", "--limits", site(), "--route", "GET /", "--tier", "prp");
  expect_failure(2, "the file has no tier prp; the nearest is pro");
  RUN("take", "acme", "--limits", site(), "--route", "default");
  expect_status(0);
}

/* ---- charge and refund ---- */

Test(cli_limits, charge_and_refund_settle_what_a_take_by_the_file_took) {
  char file[160];
  (void)snprintf(file, sizeof(file), "%s/limits.json", run_directory());
  FILE *out = fopen(file, "w");
  cr_assert(out != NULL);
  (void)fputs("{\"on_store_error\":\"open\",\"key\":\"user\",\"limits\":{\"default\":"
              "{\"capacity\":10,\"refill\":\"1/30d\",\"cost\":4,\"debt\":2},\"GET /no\":\"blocked\"},"
              "\"always\":[{\"name\":\"all\",\"capacity\":100,\"refill\":\"1/30d\",\"key\":\"global\"}]}",
              out);
  cr_assert(eq(int, fclose(out), 0));
  char uri[160];
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/settled", run_directory());
  RUN("take", "me", "--store", uri, "--limits", file, "--route", "GET /x");
  expect_status(0);
  expect_contains(run.out, "allowed: 6 of 10 left under default");
  /* What is given is that of the route's own limit; the one of every request stays. */
  RUN("charge", "me", "--store", uri, "--limits", file, "--route", "GET /x", "--cost", "9");
  expect_status(0);
  expect_contains(run.out, "charged: 0 of 10 left, the next in ");
  expect_contains(run.out, "; 1 not charged, as there was nothing left\n");
  RUN("refund", "me", "--store", uri, "--limits", file, "--route", "GET /x", "--cost", "11", "--json");
  expect_status(0);
  expect_contains(run.out, "{\"outcome\":\"refunded\",\"capacity\":10,\"remaining\":9,");
  /* Without a cost the whole request is given back, also what it took of the limit of every request. */
  RUN("refund", "me", "--store", uri, "--limits", file, "--route", "GET /x");
  expect_status(0);
  expect_contains(run.out, "refunded: 10 of 10 left under default");
  RUN("show", "--store", uri);
  expect_out("");
  RUN("charge", "me", "--store", uri, "--limits", file, "--route", "GET /no");
  expect_status(0);
  expect_out("never: the entry GET /no is blocked\n");
}
