/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command as a shell sees it: exit status, standard output, standard error. Buckets refill at 1 token an hour where
 * a test looks at what is left, so that how long the test takes does not matter.
 */
#include <errno.h>
#include <lmdb.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(cli, .fini = run_finish);

static const char *lmdb_uri(void) {
  static char uri[128];
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store", run_directory());
  return uri;
}

/* ---- take, peek, clear ---- */

Test(cli, take_answers_in_words_and_by_its_exit_status) {
  const char *uri = lmdb_uri();
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=2");
  expect_status(0);
  expect_contains(run.out, "allowed: 1 of 2 left, full in ");
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=2");
  expect_status(0);
  expect_contains(run.out, "allowed: 0 of 2 left, full in ");
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=2");
  expect_status(1);
  expect_contains(run.out, "denied: 0 of 2 left, try again in ");
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=2", "--cost", "3");
  expect_status(1);
  expect_out("never: a cost of 3 is more than the capacity of 2\n");
  cr_assert(eq(str, run.err, ""));
}

Test(cli, a_take_of_nothing_finds_a_full_bucket) {
  RUN("take", "me", "--store=memory:", "--limit=60/m", "--cost=0");
  expect_status(0);
  expect_out("allowed: 60 of 60 left, full\n");
}

Test(cli, json_has_exactly_the_promised_members) {
  RUN("take", "--json", "me", "--store", "memory:", "--limit", "1/s,capacity=60");
  expect_status(0);
  expect_out("{\"outcome\":\"allowed\",\"capacity\":60,\"remaining\":59,\"retry_after_ms\":0,\"reset_after_ms\":1000,"
             "\"decided_by\":\"store\"}\n");
  RUN("peek", "--json", "me", "--store", "memory:", "--limit", "1/s,capacity=60", "--cost", "61");
  expect_status(1);
  expect_out("{\"outcome\":\"never\",\"capacity\":60,\"remaining\":60,\"retry_after_ms\":null,\"reset_after_ms\":0,"
             "\"decided_by\":\"store\"}\n");
}

Test(cli, charge_and_refund_settle_and_exit_0_whatever_is_left) {
  const char *uri = lmdb_uri();
  static const char limit[] = "1/365d,capacity=5,debt=3";
  RUN("charge", "me", "--store", uri, "--limit", limit, "--cost", "7");
  expect_status(0);
  /* Two below zero, so the next token is the third to come. */
  expect_contains(run.out, "charged: 0 of 5 left, the next in 109");
  expect_contains(run.out, ", full in ");
  cr_assert(strstr(run.out, "not charged") == NULL, "%s", run.out);
  RUN("show", "me", "--store", uri);
  expect_contains(run.out, "\t0 left, below zero, full in ");
  RUN("take", "me", "--store", uri, "--limit", limit, "--cost", "0");
  expect_status(1);
  RUN("charge", "me", "--store", uri, "--limit", limit, "--cost=4");
  expect_status(0);
  expect_contains(run.out, "; 3 not charged, as there was nothing left\n");
  RUN("charge", "me", "--store", uri, "--limit", limit, "--json");
  expect_status(0);
  expect_contains(run.out, "{\"outcome\":\"charged\",\"capacity\":5,\"remaining\":0,\"retry_after_ms\":0,");
  expect_contains(run.out, ",\"decided_by\":\"store\",\"uncharged\":1,\"grows_after_ms\":1261");
  RUN("refund", "me", "--store", uri, "--limit", limit, "--cost", "5", "--json");
  expect_status(0);
  expect_contains(run.out, "{\"outcome\":\"refunded\",\"capacity\":5,\"remaining\":2,");
  cr_assert(strstr(run.out, "uncharged") == NULL, "%s", run.out);
  RUN("refund", "me", "--store", uri, "--limit", limit, "--cost", "9");
  expect_status(0);
  expect_out("refunded: 5 of 5 left, full\n");
  RUN("show", "--store", uri);
  expect_out("");
  cr_assert(eq(str, run.err, ""));
}

Test(cli, charge_and_refund_say_what_they_lack) {
  static const char *const verbs[] = {"charge", "refund"};
  for (size_t i = 0; i < 2; i++) {
    RUN(verbs[i], "--store", "memory:", "--limit", "5/s");
    expect_failure(2, "needs one KEY");
    RUN(verbs[i], "me", "--store", "memory:");
    expect_failure(2, "needs a limit");
    RUN(verbs[i], "me", "--store", "memory:", "--limit", "5/s", "--cost", "-1");
    expect_failure(2, "--cost is not a number of tokens");
    RUN(verbs[i], "me", "--store", "memory:", "--limit", "5/s", "--on-error", "open");
    expect_failure(2, "has no option --on-error");
    RUN(verbs[i], "me", "--store", "memory:", "--limit", "5/s,fixed_window,debt=1");
    expect_failure(2, "a window cannot owe any");
    /* A policy decides for whoever waits to be let in, and here nobody does. */
    RUN(verbs[i], "me", "--store", "redis+unix:///nowhere/redis.sock", "--limit", "5/s,on_store_error=open");
    expect_failure(3, "/nowhere/redis.sock");
  }
}

Test(cli, several_limits_are_one_decision_that_names_its_limit) {
  const char *uri = lmdb_uri();
  RUN("take", "me", "--store", uri, "--json", "--limit", "1/h,capacity=2,name=hour", "--limit",
      "1/d,capacity=1,name=\"day\"");
  expect_status(0);
  expect_contains(run.out, "\"outcome\":\"allowed\",\"capacity\":1,\"remaining\":0,");
  expect_contains(run.out, ",\"decided_by\":\"store\",\"limit\":\"\\\"day\\\"\"}\n");
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=2,name=hour", "--limit", "1/d,capacity=1,name=\"day\"");
  expect_status(1);
  expect_contains(run.out, "denied: 0 of 1 left under \"day\", try again in ");
  /* All or nothing: the denial charged the hour nothing. */
  RUN("peek", "me", "--store", uri, "--json", "--limit", "1/h,capacity=2,name=hour");
  expect_contains(run.out, "\"remaining\":1,");
}

Test(cli, one_name_for_two_sets_of_numbers_is_a_usage_error) {
  RUN("take", "me", "--store", "memory:", "--limit", "5/s", "--limit", "100/m");
  expect_failure(2, "have the name default");
  RUN("take", "me", "--store", "memory:", "--limit", "60/m", "--limit", "1/s,capacity=60", "--json");
  expect_status(0);
  expect_contains(run.out, "\"remaining\":58,");
}

Test(cli, peek_changes_nothing_and_clear_fills_the_bucket) {
  const char *uri = lmdb_uri();
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(0);
  RUN("clear", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(0);
  expect_out("cleared\n");
  RUN("peek", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(0);
  expect_out("allowed: 1 of 1 left, full\n");
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(0);
  RUN("peek", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(1);
  RUN("clear", "nobody", "--store", uri, "--limit", "1/h,capacity=1", "--json");
  expect_status(0);
  expect_out("{\"outcome\":\"cleared\"}\n");
  RUN("peek", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(1);
}

Test(cli, wait_takes_what_comes_in_time_and_gives_up_at_once_on_the_rest) {
  const char *uri = lmdb_uri();
  for (int i = 0; i < 3; i++) {
    RUN("take", "fast", "--store", uri, "--limit", "1000/s,capacity=1", "--wait");
    expect_status(0);
    RUN("take", "fast", "--store", uri, "--limit", "1000/s,capacity=1", "--wait=30s");
    expect_status(0);
  }
  RUN("take", "slow", "--store", uri, "--limit", "1/h,capacity=1", "--wait=59m");
  expect_status(0);
  /* A command that waited would be ended by the test's own time limit. */
  RUN("take", "slow", "--store", uri, "--limit", "1/h,capacity=1", "--wait=59m");
  expect_status(1);
  expect_contains(run.out, "denied: ");
  RUN("take", "slow", "--store", uri, "--limit", "1/h,capacity=1", "--wait", "--cost", "2");
  expect_status(1);
  expect_contains(run.out, "never: ");
}

Test(cli, a_key_may_begin_with_a_dash_and_hold_any_byte) {
  const char *uri = lmdb_uri();
  RUN("take", "--store", uri, "--limit", "1/h,capacity=1", "--", "--json");
  expect_status(0);
  RUN("peek", "--limit", "1/h,capacity=1", "--store", uri, "--", "--json");
  expect_status(1);
  RUN("take", "--store", uri, "--limit", "1/h,capacity=1", "-");
  expect_status(0);
  RUN("take", "--store", uri, "--limit", "1/h,capacity=1", "a\n\x1b[31m\xff\xc3\xa4%s%n{}:");
  expect_status(0);
  RUN("peek", "--store", uri, "--limit", "1/h,capacity=1", "a\n\x1b[31m\xff\xc3\xa4%s%n{}:");
  expect_status(1);
  RUN("peek", "--store", uri, "--limit", "1/h,capacity=1", "a");
  expect_status(0);
}

Test(cli, a_key_has_1_to_4096_bytes) {
  static char key[4098];
  memset(key, 'k', 4096);
  RUN("take", key, "--store", "memory:", "--limit", "5/s");
  expect_status(0);
  key[4096] = 'k';
  RUN("take", key, "--store", "memory:", "--limit", "5/s");
  expect_failure(2, "KEY has 4097 bytes");
  RUN("take", "", "--store", "memory:", "--limit", "5/s");
  expect_failure(2, "KEY has 0 bytes");
}

/* ---- The command line ---- */

Test(cli, an_unknown_name_is_answered_with_the_nearest) {
  RUN("tkae", "me", "--limit", "5/s");
  expect_failure(2, "no verb tkae; the nearest is take");
  RUN("--vresion");
  expect_failure(2, "the nearest is --version");
  RUN("take", "me", "--limt", "5/s");
  expect_failure(2, "no option --limt; the nearest is --limit");
  RUN("take", "me", "-j");
  expect_failure(2, "take has no option -j; see spile take --help");
  RUN("peek", "me", "--wait", "--limit", "5/s");
  expect_failure(2, "peek has no option --wait");
  RUN("take", "me", "--lim", "5/s");
  expect_failure(2, "the nearest is --limit");
  RUN("charge", "me", "--limit", "5/s", "--on-error", "open");
  expect_failure(2, "charge has no option --on-error; see spile charge --help");
}

Test(cli, every_wrong_command_line_is_a_usage_error) {
  RUN("take", "me", "--store", "memory:");
  expect_failure(2, "take needs a limit");
  RUN("take", "--store", "memory:", "--limit", "5/s");
  expect_failure(2, "take needs one KEY");
  RUN("take", "me", "you", "--store", "memory:", "--limit", "5/s");
  expect_failure(2, "take needs one KEY");
  RUN("take", "me", "--store", "memory:", "--limit");
  expect_failure(2, "--limit needs a value");
  RUN("take", "me", "--store", "memory:", "--limit", "5/fortnight");
  expect_failure(2, "--limit: column 3: ");
  RUN("take", "me", "--store", "memory:", "--limit", "");
  expect_failure(2, "--limit: column 1: the text ends where a count should be; write a limit as COUNT/PERIOD, such as "
                    "10/s or 0.05/s,capacity=5\n");
  RUN("take", "me", "--store", "memory:", "--limit", "10");
  expect_failure(2, "--limit: column 3: the text ends where a '/' and a period should be; write a limit as "
                    "COUNT/PERIOD, such as 10/s or 0.05/s,capacity=5\n");
  RUN("take", "me", "--store", "memory:", "--limit", "5/s", "--json=yes");
  expect_failure(2, "--json takes no value");
  RUN("take", "me", "--store", "memory:", "--limit", "5/s", "--cost", "1", "--cost", "2");
  expect_failure(2, "--cost is given twice");
  RUN("take", "me", "--store", "nowhere:", "--limit", "5/s");
  expect_failure(2, "no known scheme");
  RUN("replay", "--limit", "5/s", "--by", "tenant");
  expect_failure(2, "--by is neither ip nor route");
  RUN("replay", "--limit", "5/s", "/does/not/exist");
  expect_failure(2, "cannot open /does/not/exist");
  RUN("clear", "me", "--simulated", "--store", "memory:");
  expect_failure(2, "clear --simulated takes neither");
}

Test(cli, no_words_at_all_are_answered_with_the_usage) {
  run_with((const char *const[]){NULL}, NULL, NULL);
  expect_status(2);
  expect_out("");
  expect_contains(run.err, "usage: spile VERB");
}

Test(cli, help_and_version_are_results) {
  RUN("--help");
  expect_status(0);
  expect_contains(run.out, "usage: spile VERB");
  RUN("--version");
  expect_status(0);
  cr_assert(strncmp(run.out, "spile ", 6) == 0 && strchr(run.out, '.') != NULL, "%s", run.out);
  static const char *const verbs[] = {"take", "peek", "clear", "simulate", "replay", "show"};
  for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
    char start[64];
    (void)snprintf(start, sizeof(start), "usage: spile %s ", verbs[i]);
    RUN(verbs[i], "--help");
    expect_status(0);
    cr_assert(strncmp(run.out, start, strlen(start)) == 0, "%s", run.out);
  }
}

Test(cli, ops_04_a_bad_number_is_a_usage_error_before_any_store_is_asked) {
  /* Nothing listens there: a store call would end in 3. */
  static const char uri[] = "redis://user:s3cret@127.0.0.1:1";
  static const char *const costs[] = {
      "-1", "1e3", "", "+1", " 1", "1.0", "0x1", "9007199254740992", "99999999999999999999"};
  for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
    RUN("take", "me", "--store", uri, "--limit", "5/s", "--cost", costs[i]);
    expect_failure(2, "--cost is not a number of tokens");
  }
  static const char *const timeouts[] = {"0", "-1", "", "3600001", "1s"};
  for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
    RUN("take", "me", "--store", uri, "--limit", "5/s", "--timeout", timeouts[i]);
    expect_failure(2, "--timeout is not a number of milliseconds");
  }
  static const char *const waits[] = {"--wait=", "--wait=2", "--wait=s", "--wait=-1s", "--wait=3651d", "--wait=1.5s"};
  for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
    RUN("take", "me", "--store", uri, "--limit", "5/s", waits[i]);
    expect_failure(2, "--wait is not a duration");
  }
}

Test(cli, ops_04_a_store_that_is_down_is_neither_allowed_nor_denied_and_its_password_is_not_shown) {
  static const char uri[] = "redis://user:s3cret@127.0.0.1:1";
  static const char *const forms[][8] = {
      {"take", "me", "--limit", "5/s", "--store", uri},
      {"take", "me", "--limit", "5/s", "--json", "--store", uri},
      {"peek", "me", "--limit", "5/s", "--store", uri},
      {"clear", "me", "--limit", "5/s", "--store", uri},
      {"show", "--store", uri},
  };
  for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
    run_with(forms[i], NULL, NULL);
    expect_failure(3, "(connect)");
    cr_assert(strstr(run.err, "s3cret") == NULL, "%s", run.err);
  }
  run_with(ARGS("take", "me", "--limit", "5/s"), ARGS("SPILE_STORE=redis://user:s3cret@127.0.0.1:1"), NULL);
  expect_failure(3, "(connect)");
  cr_assert(strstr(run.err, "s3cret") == NULL, "%s", run.err);
  /* Where an address stands by mistake it is not repeated either. */
  RUN(uri, "me");
  expect_failure(2, "not a verb");
  cr_assert(strstr(run.err, "s3cret") == NULL, "%s", run.err);
  RUN("take", "me", uri, "--limit", "5/s");
  expect_failure(2, "take needs one KEY");
  cr_assert(strstr(run.err, "s3cret") == NULL, "%s", run.err);
  RUN("take", "me", "--redis://user:s3cret@127.0.0.1:1", "--limit", "5/s");
  expect_failure(2, "take has no such option");
  cr_assert(strstr(run.err, "s3cret") == NULL, "%s", run.err);
}

Test(cli, never_needs_no_store_and_names_its_error) {
  RUN("take", "me", "--limit", "5/s", "--cost", "6", "--json", "--store", "redis://127.0.0.1:1");
  expect_status(1);
  expect_out("{\"outcome\":\"never\",\"capacity\":5,\"remaining\":null,\"retry_after_ms\":null,\"reset_after_ms\":null,"
             "\"decided_by\":\"limits\",\"store_error\":\"connect\"}\n");
}

Test(cli, an_answer_that_cannot_be_written_is_not_success) {
  run_command(&run, &(run_options){.args = ARGS("take", "me", "--store", "memory:", "--limit", "5/s"),
                                   .output_path = "/dev/full"});
  expect_failure(3, "cannot write the result: No space left on device");
  run_result_finish(&run);
  run_command(
      &run, &(run_options){.args = ARGS("take", "me", "--store", lmdb_uri(), "--limit", "5/s"), .output_closed = true});
  expect_failure(3, "cannot write the result: Bad file descriptor");
  /* The closed stream's number did not become the store's file. */
  RUN("show", "--store", lmdb_uri());
  expect_status(0);
}

Test(cli, a_closed_pipe_ends_the_command_quietly) {
  int pipe_ends[2];
  cr_assert(pipe(pipe_ends) == 0);
  (void)close(pipe_ends[0]);
  run_command(&run, &(run_options){.args = ARGS("take", "me", "--store", "memory:", "--limit", "5/s"),
                                   .output_fd = pipe_ends[1]});
  expect_status(128 + SIGPIPE);
  cr_assert(eq(str, run.err, ""));
}

/* ---- Which store ---- */

Test(cli, without_a_store_buckets_are_kept_under_the_home_directory) {
  RUN("take", "--limit", "1/h,capacity=1", "me");
  expect_status(0);
  RUN("take", "--limit", "1/h,capacity=1", "me");
  expect_status(1);
  char uri[128];
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/.local/state/spile", run_directory());
  RUN("show", "--store", uri);
  cr_assert(strncmp(run.out, "me\tdefault\t1/h,capacity=1\t0 left, full in ", 42) == 0, "%s", run.out);
}

Test(cli, xdg_state_home_and_then_spile_store_come_first) {
  char state[128];
  char store[256];
  (void)snprintf(state, sizeof(state), "XDG_STATE_HOME=%s/50%% ?", run_directory());
  (void)snprintf(store, sizeof(store), "SPILE_STORE=%s", lmdb_uri());
  run_with(ARGS("take", "--limit", "1/h,capacity=1", "me"), ARGS(state), NULL);
  expect_status(0);
  run_with(ARGS("peek", "--limit", "1/h,capacity=1", "me"), ARGS(state), NULL);
  expect_status(1);
  char path[128];
  (void)snprintf(path, sizeof(path), "%s/50%% ?/spile", run_directory());
  cr_assert(access(path, F_OK) == 0, "%s: %s", path, strerror(errno));
  run_with(ARGS("take", "--limit", "1/h,capacity=1", "me"), ARGS(state, store), NULL);
  expect_status(0);
  RUN("peek", "--limit", "1/h,capacity=1", "me", "--store", lmdb_uri());
  expect_status(1);
  /* --store wins over both, an empty SPILE_STORE and a relative XDG_STATE_HOME are none. */
  run_with(ARGS("peek", "--limit", "1/h,capacity=1", "me", "--store", "memory:"), ARGS(state, store), NULL);
  expect_status(0);
  run_with(ARGS("peek", "--limit", "1/h,capacity=1", "me"), ARGS("XDG_STATE_HOME=state", "SPILE_STORE="), NULL);
  expect_status(0);
}

Test(cli, without_any_place_for_a_store_it_says_what_to_set) {
  run_with(ARGS("take", "--limit", "5/s", "me"), ARGS("HOME="), NULL);
  expect_failure(2, "set SPILE_STORE");
}

/* A default store that cannot be made is a store that cannot answer, and not a mistake of the command line. */
Test(cli, a_default_store_that_cannot_be_made_is_answered_by_the_policy) {
  static const char *const env[] = {"XDG_STATE_HOME=/proc/none", NULL};
  run_with(ARGS("take", "k", "--limit", "1/s", "--on-error", "open"), env, NULL);
  expect_status(0);
  cr_assert(eq(str, run.out, "allowed: the store could not answer (io), not counted\n"));
  run_with(ARGS("take", "k", "--limit", "1/s,on_store_error=open"), env, NULL);
  expect_status(0);
  run_with(ARGS("take", "k", "--limit", "1/s", "--on-error", "closed"), env, NULL);
  expect_status(1);
  run_with(ARGS("take", "k", "--limit", "1/s"), env, NULL);
  expect_failure(3, "/proc/none");
  run_with(ARGS("show"), env, NULL);
  expect_failure(3, "/proc/none");
  run_with(ARGS("repair"), env, NULL);
  expect_failure(3, "/proc/none");
}

Test(cli, simulate_says_once_that_its_store_is_not_there) {
  run_with(ARGS("simulate", "--limit", "1/s", "--store", "redis://127.0.0.1:1"), NULL, "1,a\n");
  expect_status(3);
  const char *said = strstr(run.err, "no connection");
  cr_assert(said != NULL, "%s", run.err);
  cr_assert(strstr(said + 1, "no connection") == NULL, "%s", run.err);
  cr_assert(strstr(run.err, "may be left") == NULL, "nothing came to it: %s", run.err);
}

Test(cli, help_names_all_that_the_text_of_a_limit_takes) {
  static const char *const verbs[] = {"take", "peek", "clear", "simulate", "replay"};
  for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
    RUN(verbs[i], "--help");
    expect_status(0);
    static const char *const words[] = {"capacity=", "name=", "on_full=closed|open|fail",
                                        "on_store_error=fail|open|closed"};
    for (size_t j = 0; j < sizeof(words) / sizeof(words[0]); j++)
      cr_assert(strstr(run.out, words[j]) != NULL, "%s: %s", verbs[i], words[j]);
  }
}

/* ---- show ---- */

Test(cli, show_tells_every_bucket_or_those_of_one_key) {
  const char *uri = lmdb_uri();
  RUN("take", "me", "--store", uri, "--limit", "5/d,name=day", "--limit", "60/90m,capacity=7,name=a\tb");
  expect_status(0);
  RUN("take", "POST /search\n\xff\\", "--store", uri, "--limit", "5/d");
  expect_status(0);
  RUN("show", "--store", uri);
  expect_status(0);
  /* Rates in lowest terms: 5 a day is 1 in 288 minutes, 60 in 90 minutes are 1 in 90 seconds. */
  expect_contains(run.out, "me\tday\t1/288m,capacity=5\t4 left, full in 4 h 4");
  expect_contains(run.out, "me\ta\\x09b\t1/90s,capacity=7\t6 left, full in 1 min ");
  expect_contains(run.out, "POST /search\\x0a\\xff\\x5c\tdefault\t1/288m,capacity=5\t4 left, full in ");
  RUN("show", "me", "--store", uri, "--json");
  expect_status(0);
  expect_contains(run.out, "{\"key\":\"me\",\"limit\":\"day\",\"hashed\":false,\"algorithm\":\"token_bucket\","
                           "\"capacity\":5,\"refill_tokens\":1,\"refill_period_ms\":17280000,\"remaining\":4,"
                           "\"reset_after_ms\":1");
  expect_contains(run.out, "\"limit\":\"a\\u0009b\"");
  cr_assert(strstr(run.out, "search") == NULL, "%s", run.out);
  RUN("show", "nobody", "--store", uri);
  expect_status(0);
  expect_out("");
}

Test(cli, show_writes_a_limit_as_it_is_given_and_take_tells_its_delay) {
  const char *uri = lmdb_uri();
  RUN("take", "me", "--store", uri, "--limit", "5/365d,fixed_window,name=f", "--limit", "5/365d,sliding_window,name=w");
  expect_status(0);
  RUN("take", "me", "--store", uri, "--limit", "5/365d,sliding_log,name=e");
  expect_status(0);
  RUN("take", "me", "--store", uri, "--limit", "1/365d,leaky_bucket,capacity=5,name=l");
  expect_status(0);
  RUN("take", "me", "--store", uri, "--json", "--limit", "1/365d,leaky_bucket,capacity=5,name=l");
  expect_status(0);
  expect_contains(run.out, "\"delay_ms\":31535");
  RUN("show", "--store", uri);
  expect_status(0);
  expect_contains(run.out, "me\tf\t5/365d,fixed_window\t4 left");
  expect_contains(run.out, "me\tw\t5/365d,sliding_window\t4 left");
  expect_contains(run.out, "me\te\t5/365d,sliding_log\t4 left");
  expect_contains(run.out, "me\tl\t1/365d,capacity=5,leaky_bucket\t3 left");
  /* One name, two algorithms: two buckets, whose numbers may differ. */
  RUN("take", "me", "--store", uri, "--limit", "5/d", "--limit", "7/h,sliding_log");
  expect_status(0);
}

Test(cli, json_tells_bytes_that_are_not_utf_8_without_loss) {
  const char *uri = lmdb_uri();
  RUN("take", "\xc3\xa4\xff\"", "--store", uri, "--limit", "5/d");
  RUN("show", "--json", "--store", uri);
  expect_contains(run.out, "{\"key\":\"\\u00c3\\u00a4\\u00ff\\\"\",\"key_encoding\":\"bytes\",\"limit\":\"default\",");
  RUN("clear", "\xc3\xa4\xff\"", "--store", uri, "--limit", "5/d");
  RUN("take", "\xc3\xa4\x1b\xf0\x9f\x8d\xba", "--store", uri, "--limit", "5/d");
  RUN("show", "--json", "--store", uri);
  expect_contains(run.out, "{\"key\":\"\xc3\xa4\\u001b\xf0\x9f\x8d\xba\",\"limit\":\"default\",");
}

Test(cli, show_says_of_a_hashed_key_that_it_is_one) {
  static char key[1001];
  memset(key, 'k', 1000);
  const char *uri = lmdb_uri();
  RUN("take", key, "--store", uri, "--limit", "5/d");
  expect_status(0);
  RUN("show", "--store", uri);
  expect_contains(run.out, "(long key, hashed)\t");
  RUN("show", "--store", uri, "--json");
  expect_contains(run.out, "{\"key\":null,\"limit\":null,\"hashed\":true,");
  RUN("show", key, "--store", uri);
  expect_status(0);
  expect_out("");
  expect_contains(run.err, "1 buckets of long keys are stored as hashes");
}

/* ---- repair ---- */

static const char *store_path(const char *name) {
  static char path[256];
  (void)snprintf(path, sizeof(path), "%s/store/%s", run_directory(), name);
  return path;
}

Test(cli, repair_moves_a_damaged_file_aside_and_an_empty_store_begins) {
  const char *uri = lmdb_uri();
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(0);
  RUN("repair", "--store", uri);
  expect_status(0);
  expect_out("sound: nothing to repair\n");
  RUN("repair", "--store", uri, "--json");
  expect_status(0);
  expect_out("{\"repaired\":false,\"moved_to\":null}\n");
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(1);

  cr_assert(eq(int, truncate(store_path("data.mdb"), 9000), 0));
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_failure(3, "spile repair");
  RUN("repair", "--store", uri, "--json");
  expect_status(0);
  char line[512];
  (void)snprintf(line, sizeof(line), "{\"repaired\":true,\"moved_to\":\"%s\"}\n", store_path("data.mdb.damaged-1"));
  expect_out(line);
  expect_contains(run.err, "spile: lmdb: moved aside to data.mdb.damaged-1: ");
  cr_assert(eq(int, access(store_path("data.mdb.damaged-1"), R_OK), 0));
  RUN("take", "me", "--store", uri, "--limit", "1/h,capacity=1");
  expect_status(0);

  cr_assert(eq(int, truncate(store_path("data.mdb"), 9000), 0));
  RUN("repair", "--store", uri);
  expect_status(0);
  (void)snprintf(line, sizeof(line), "repaired: the damaged file is kept as %s; the store is empty\n",
                 store_path("data.mdb.damaged-2"));
  expect_out(line);
}

Test(cli, repair_says_why_it_cannot) {
  RUN("repair", "--store", "memory:");
  expect_failure(2, "lmdb:PATH");
  RUN("repair", "--store", "redis://user:s3cret@127.0.0.1:1");
  expect_failure(2, "lmdb:PATH");
  RUN("repair", "me", "--store", lmdb_uri());
  expect_failure(2, "no arguments");
  RUN("repair", "--store", lmdb_uri());
  expect_failure(3, "No such file or directory");
  RUN("repair", "--limit", "1/s");
  expect_failure(2, "no option --limit");
}

/* ---- simulate ---- */

#define CSV_HEADER "at_ms,key,cost,outcome,remaining,retry_after_ms,reset_after_ms\n"

Test(cli, simulate_draws_the_picture_of_a_bucket) {
  RUN_INPUT("1000,a,60\n30000,a,0\n30000,a,25\n90000,a,0\n", "simulate", "--limit", "1/s,capacity=60");
  expect_status(0);
  expect_out(CSV_HEADER "1000,a,60,allowed,0,0,60000\n"
                        "30000,a,0,allowed,29,0,31000\n"
                        "30000,a,25,allowed,4,0,56000\n"
                        "90000,a,0,allowed,60,0,0\n");
}

Test(cli, simulate_reads_comments_header_line_ends_and_missing_costs) {
  RUN_INPUT("# a trace\r\nat_ms,key,cost\r\n5000,a b\r\n# more\n5000,\xff,3\n1000,a b,9\n0,a b,4", "simulate", "-",
            "--limit", "1/s,capacity=5", "--cost", "2");
  expect_status(0);
  /* Time goes back by 4 s at the third line and by 5 s at the fourth, where the bucket looks emptier by as much: full
   * at 7000, at 0 the debt is 7 tokens, more than the 5 + 1 that clocks may disagree by, and is cut to 5. */
  expect_out(CSV_HEADER "5000,a b,2,allowed,3,0,2000\n"
                        "5000,\xff,3,allowed,2,0,3000\n"
                        "1000,a b,9,never,0,,6000\n"
                        "0,a b,4,denied,0,4000,5000\n");
}

Test(cli, simulate_ends_at_a_bad_line_and_says_which) {
  static const struct {
    const char *line;
    const char *fault;
  } bad[] = {
      {"x,a,1", "at_ms is not a whole number"},
      {",a,1", "at_ms is not a whole number"},
      {"-1,a,1", "at_ms is not a whole number"},
      {"10000000000001,a,1", "at_ms is not a whole number"},
      {"1000", "not at_ms,key"},
      {"", "not at_ms,key"},
      {"1000,a,1,2", "not at_ms,key"},
      {"1000,,1", "the key does not have"},
      {"1000,a,", "cost is not"},
      {"1000,a,-1", "cost is not"},
      {"1000,a,1e3", "cost is not"},
      {"1000,a,9007199254740992", "cost is not"},
      {"at_ms,key,cost", "at_ms is not a whole number"},
  };
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    char input[128];
    (void)snprintf(input, sizeof(input), "# first\n1000,a,1\n%s\n1000,b,1\n", bad[i].line);
    RUN_INPUT(input, "simulate", "--limit", "1/s,capacity=5");
    expect_status(2);
    expect_contains(run.err, "spile: line 3: ");
    expect_contains(run.err, bad[i].fault);
    expect_out(CSV_HEADER "1000,a,1,allowed,4,0,1000\n");
  }
}

Test(cli, simulate_refuses_a_line_or_key_that_is_too_long) {
  static char input[70000];
  (void)snprintf(input, sizeof(input), "1000,%0*d\n", 4096, 0);
  RUN_INPUT(input, "simulate", "--limit", "5/s");
  expect_status(0);
  (void)snprintf(input, sizeof(input), "1000,%0*d\n", 4097, 0);
  RUN_INPUT(input, "simulate", "--limit", "5/s");
  expect_status(2);
  expect_contains(run.err, "line 1: the key does not have");
  (void)snprintf(input, sizeof(input), "1000,a\n1000,%0*d\n", 69000, 0);
  RUN_INPUT(input, "simulate", "--limit", "5/s");
  expect_status(2);
  expect_contains(run.err, "line 2: it is too long");
}

static bool ends_with(const char *line, const char *end, const char *tail) {
  size_t len = strlen(tail);
  return (size_t)(end - line) >= len && memcmp(end - len, tail, len) == 0;
}

Test(cli, simulate_gives_the_memory_store_room_for_every_key_of_the_trace) {
  /* More keys than the store has room for by default, none of them full again: each must be found drained. */
  enum { KEYS = 150000 };
  char path[128];
  (void)snprintf(path, sizeof(path), "%s/trace.csv", run_directory());
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL);
  for (int round = 0; round < 2; round++) {
    for (int key = 0; key < KEYS; key++)
      (void)fprintf(file, "1000,%d\n", key);
  }
  cr_assert(fclose(file) == 0);
  RUN("simulate", "--limit", "1/h,capacity=1", path);
  expect_status(0);
  size_t allowed = 0;
  size_t denied = 0;
  for (const char *line = run.out; *line != '\0';) {
    const char *end = strchr(line, '\n');
    cr_assert(end != NULL);
    allowed += ends_with(line, end, ",allowed,0,0,3600000");
    denied += ends_with(line, end, ",denied,0,3600000,3600000");
    line = end + 1;
  }
  cr_assert(eq(sz, allowed, KEYS));
  cr_assert(eq(sz, denied, KEYS));
}

/* Logs grow: what is counted of them must find room too. */
Test(cli, simulate_gives_the_memory_store_room_for_every_entry_of_logs) {
  static char trace[200 * 20 * 12];
  size_t len = 0;
  for (int i = 0; i < 200; i++) {
    for (int key = 0; key < 20; key++)
      len += (size_t)snprintf(trace + len, sizeof(trace) - len, "%d,k%d\n", i, key);
  }
  RUN_INPUT(trace, "simulate", "--limit", "150/m,sliding_log");
  expect_status(0);
  size_t allowed = 0;
  for (const char *at = run.out; (at = strstr(at, ",allowed,")) != NULL; at++)
    allowed++;
  cr_assert(eq(sz, allowed, 20 * 150));
}

/* The articles' own trace: a hundred in the last second before noon, and a hundred in the second after. */
Test(cli, simulate_tells_the_windows_apart) {
  static char trace[200 * 16];
  size_t len = 0;
  for (int i = 0; i < 200; i++)
    len += (size_t)snprintf(trace + len, sizeof(trace) - len, "%d,a\n", i < 100 ? 43199000 : 43201000);
  static const struct {
    const char *limit;
    size_t second;
  } rows[] = {{"100/m,fixed_window", 100}, {"100/m,sliding_window", 1}, {"100/m,sliding_log", 0}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    RUN_INPUT(trace, "simulate", "--limit", rows[i].limit);
    expect_status(0);
    size_t allowed = 0;
    for (const char *at = run.out; (at = strstr(at, ",allowed,")) != NULL; at++)
      allowed++;
    cr_assert(allowed == 100 + rows[i].second, "%s: %zu", rows[i].limit, allowed);
  }
}

Test(cli, simulate_gives_the_memory_store_room_for_keys_of_any_length) {
  enum { KEYS = 300, KEY_LEN = 4000 };
  char path[128];
  (void)snprintf(path, sizeof(path), "%s/trace.csv", run_directory());
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL);
  for (int round = 0; round < 2; round++) {
    for (int key = 0; key < KEYS; key++)
      (void)fprintf(file, "1000,%0*d\n", KEY_LEN, key);
  }
  cr_assert(fclose(file) == 0);
  RUN("simulate", "--limit", "1/h,capacity=1,name=a", "--limit", "1/d,capacity=2,name=b", path);
  expect_status(0);
  size_t allowed = 0;
  size_t denied = 0;
  for (const char *line = run.out; *line != '\0';) {
    const char *end = strchr(line, '\n');
    cr_assert(end != NULL);
    allowed += ends_with(line, end, ",allowed,0,0,3600000");
    denied += ends_with(line, end, ",denied,0,3600000,3600000");
    line = end + 1;
  }
  cr_assert(eq(sz, allowed, KEYS));
  cr_assert(eq(sz, denied, KEYS));
}

Test(cli, simulate_shows_the_row_of_the_deciding_limit) {
  RUN_INPUT("0,a\n0,a\n1000,a\n", "simulate", "--limit", "1/s,capacity=1", "--limit", "1/m,capacity=2,name=minute");
  expect_out(CSV_HEADER "0,a,1,allowed,0,0,1000\n"
                        "0,a,1,denied,0,1000,1000\n"
                        "1000,a,1,allowed,0,0,119000\n");
}

/*
 * How many entries the store's file has, buckets and whatever else it keeps there. No command can tell: simulated
 * buckets are under a prefix that only their run knows.
 */
static size_t stored_entries(void) {
  MDB_env *env;
  MDB_txn *txn;
  MDB_dbi dbi;
  MDB_stat stat;
  cr_assert(mdb_env_create(&env) == 0);
  cr_assert(mdb_env_open(env, lmdb_uri() + strlen("lmdb:"), MDB_RDONLY | MDB_NOLOCK, 0) == 0);
  cr_assert(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
  cr_assert(mdb_dbi_open(txn, NULL, 0, &dbi) == 0);
  cr_assert(mdb_stat(txn, dbi, &stat) == 0);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  return stat.ms_entries;
}

/* A store with one real bucket, of key "a". @return how many entries it has */
static size_t store_begin(void) {
  RUN("take", "a", "--store", lmdb_uri(), "--limit", "1/h,capacity=2");
  expect_status(0);
  return stored_entries();
}

static void expect_real_bucket_alone(size_t entries) {
  RUN("show", "--store", lmdb_uri());
  cr_assert(strncmp(run.out, "a\tdefault\t1/h,capacity=2\t1 left, ", 33) == 0, "%s", run.out);
  cr_assert(eq(sz, stored_entries(), entries));
}

Test(cli, simulate_leaves_the_real_buckets_of_a_store_alone_and_its_own_nowhere) {
  size_t entries = store_begin();
  for (int i = 0; i < 2; i++) {
    RUN_INPUT("1000,a,2\n2000,a,2\n", "simulate", "--store", lmdb_uri(), "--limit", "1/h,capacity=2");
    expect_status(0);
    expect_out(CSV_HEADER "1000,a,2,allowed,0,0,7200000\n2000,a,2,denied,0,7199000,7199000\n");
    expect_real_bucket_alone(entries);
  }
  RUN_INPUT("1000,a,2\nbad\n", "simulate", "--store", lmdb_uri(), "--limit", "1/h,capacity=2");
  expect_status(2);
  expect_real_bucket_alone(entries);
}

/* Feeds one line to a simulation and reads until its row is there; the bucket is then stored. */
static void simulation_start(running_command *running) {
  run_start(running, &(run_options){.args = ARGS("simulate", "--store", lmdb_uri(), "--limit", "1/h,capacity=2")});
  cr_assert(write(running->input, "1000,a\n", 7) == 7);
  char text[256];
  size_t len = 0;
  do {
    ssize_t got = read(running->output, text + len, sizeof(text) - 1 - len);
    cr_assert(got > 0, "the row did not come");
    len += (size_t)got;
    text[len] = '\0';
  } while (strstr(text, "1000,a,1,allowed,1,0,3600000\n") == NULL);
}

static void expect_cleaned_after(int number) {
  size_t entries = store_begin();
  running_command running;
  simulation_start(&running);
  cr_assert(eq(sz, stored_entries(), entries + 1));
  cr_assert(kill(running.pid, number) == 0);
  cr_assert(eq(int, run_wait(&running), 128 + number));
  expect_real_bucket_alone(entries);
}

Test(cli, repair_is_refused_while_another_process_has_the_store_open) {
  running_command running;
  simulation_start(&running);
  RUN("repair", "--store", lmdb_uri());
  expect_failure(3, "another process");
  cr_assert(kill(running.pid, SIGTERM) == 0);
  cr_assert(eq(int, run_wait(&running), 128 + SIGTERM));
  RUN("repair", "--store", lmdb_uri());
  expect_status(0);
  expect_out("sound: nothing to repair\n");
}

Test(cli, simulate_removes_its_buckets_on_sigterm) {
  expect_cleaned_after(SIGTERM);
}

Test(cli, simulate_removes_its_buckets_on_sigint) {
  expect_cleaned_after(SIGINT);
}

Test(cli, simulate_removes_its_buckets_when_nobody_reads_on) {
  size_t entries = store_begin();
  running_command running;
  simulation_start(&running);
  (void)close(running.output);
  running.output = -1;
  cr_assert(write(running.input, "2000,b\n3000,c\n", 14) == 14);
  (void)close(running.input);
  running.input = -1;
  cr_assert(eq(int, run_wait(&running), 128 + SIGPIPE));
  expect_real_bucket_alone(entries);
}

Test(cli, clear_simulated_removes_what_a_kill_left) {
  size_t entries = store_begin();
  running_command running;
  simulation_start(&running);
  cr_assert(kill(running.pid, SIGKILL) == 0);
  cr_assert(eq(int, run_wait(&running), 128 + SIGKILL));
  cr_assert(eq(sz, stored_entries(), entries + 1));
  RUN("clear", "--simulated", "--store", lmdb_uri());
  expect_status(0);
  expect_out("cleared\n");
  expect_real_bucket_alone(entries);
}
