/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command spile: finds the verb, reads its options, runs it and ends with its status.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/verbs.h"

/* ---- The verbs ---- */

#define STORE_HELP                                                                                           \
  "  --store URI     memory:, lmdb:PATH, redis://HOST or redis+unix:///PATH; else $SPILE_STORE, else LMDB\n" \
  "                  under $XDG_STATE_HOME/spile or ~/.local/state/spile\n"
#define PREFIX_HELP                                                                                           \
  "  --key-prefix P  the servers' options.key_prefix: what keys begin with, 1 to 64 of A-Z a-z 0-9 - . _ ~\n" \
  "                  (default what the limits file says, else rl)\n"
#define LIMIT_HELP                                                                                                 \
  "  --limit TEXT    such as 10/s, 1/s,capacity=60 or 1000/d,name=day; several are decided all or nothing; also\n" \
  "                  leaky_bucket, fixed_window, sliding_window or sliding_log in place of token_bucket,\n"        \
  "                  debt=TOKENS, on_full=closed|open|fail and on_store_error=fail|open|closed, each after a comma\n"
#define FILE_HELP                                                                                                   \
  "  --limits FILE   instead: what a limits file has for the request (see spile check); KEY is then KIND=VALUE,\n"  \
  "                  or several with commas between: tenant, user, api_key, ip and header:NAME; or one bare value " \
  "of\n"                                                                                                            \
  "                  whatever kind comes first. $SPILE_SECRET_FILE names the secret for limits by api_key\n"        \
  "  --route ROUTE   with --limits: METHOD and path of the request, such as 'POST /search'\n"                       \
  "  --tier NAME     with --limits: for a caller of this tier\n"
#define COST_HELP "  --cost N        tokens to take, 0 or more (default 1; with --limits that of the route)\n"
#define TIMEOUT_HELP "  --timeout MS    longest time of one store call, 1 to 3600000 (default 1000)\n"
#define ON_ERROR_HELP                                                                                              \
  "  --on-error WHAT fail (exit 3, the default), open (allowed) or closed (denied) when the store cannot answer\n" \
  "                  (default with --limits: what the file says)\n"
#define JSON_HELP "  --json          one JSON object a line\n"
#define ANSWER_HELP                                                                                            \
  "\nExits 0 when allowed, 1 when denied or never, 2 on a wrong command line, 3 when the store fails (unless " \
  "--on-error decides).\n"
#define SETTLE_COST_HELP                                                                                          \
  "  --cost N        tokens, 0 or more (default 1; with --limits what the file has for a request, and if given, " \
  "that\n"                                                                                                        \
  "                  of the route's own limits alone)\n"
#define SETTLE_HELP \
  "\nExits 0 when it is done, 2 on a wrong command line, 3 when the store fails; it may have been done then.\n"

#define OPTIONS_FILE (OPTION_LIMITS | OPTION_ROUTE | OPTION_TIER)
#define OPTIONS_STORE (OPTION_STORE | OPTION_KEY_PREFIX | OPTION_TIMEOUT)

static const struct {
  const char *name;
  int (*run)(const cli_options *options);
  unsigned options;
  const char *help;
} verbs[] = {
    {"take", take_run,
     OPTIONS_STORE | OPTION_LIMIT | OPTIONS_FILE | OPTION_COST | OPTION_WAIT | OPTION_ON_ERROR | OPTION_JSON,
     "usage: spile take KEY --limit TEXT... [option...]\n"
     "       spile take KEY --limits FILE --route ROUTE [option...]\n"
     "Takes tokens of KEY's bucket if they are there.\n\n" STORE_HELP PREFIX_HELP LIMIT_HELP FILE_HELP COST_HELP
     "  --wait[=MAX]    wait until the tokens are there, at most MAX (500ms, 2s, 1m); more is a denial at "
     "once\n" TIMEOUT_HELP ON_ERROR_HELP JSON_HELP ANSWER_HELP},
    {"peek", peek_run, OPTIONS_STORE | OPTION_LIMIT | OPTIONS_FILE | OPTION_COST | OPTION_ON_ERROR | OPTION_JSON,
     "usage: spile peek KEY --limit TEXT... [option...]\n"
     "       spile peek KEY --limits FILE --route ROUTE [option...]\n"
     "Says what a take would find, and changes nothing.\n\n" STORE_HELP PREFIX_HELP LIMIT_HELP FILE_HELP COST_HELP
         TIMEOUT_HELP ON_ERROR_HELP JSON_HELP ANSWER_HELP},
    {"charge", charge_run, OPTIONS_STORE | OPTION_LIMIT | OPTIONS_FILE | OPTION_COST | OPTION_JSON,
     "usage: spile charge KEY --limit TEXT... [option...]\n"
     "       spile charge KEY --limits FILE --route ROUTE [option...]\n"
     "Charges KEY's bucket whether it has the tokens or not, as far as the limit's debt goes (none unless it says\n"
     "debt=TOKENS), and tells what could not be charged.\n\n" STORE_HELP PREFIX_HELP LIMIT_HELP FILE_HELP
         SETTLE_COST_HELP TIMEOUT_HELP JSON_HELP SETTLE_HELP},
    {"refund", refund_run, OPTIONS_STORE | OPTION_LIMIT | OPTIONS_FILE | OPTION_COST | OPTION_JSON,
     "usage: spile refund KEY --limit TEXT... [option...]\n"
     "       spile refund KEY --limits FILE --route ROUTE [option...]\n"
     "Gives tokens back to KEY's bucket, up to its capacity; of a window what the window of now has "
     "counted.\n\n" STORE_HELP PREFIX_HELP LIMIT_HELP FILE_HELP SETTLE_COST_HELP TIMEOUT_HELP JSON_HELP SETTLE_HELP},
    {"clear", clear_run, OPTIONS_STORE | OPTION_LIMIT | OPTIONS_FILE | OPTION_JSON | OPTION_SIMULATED,
     "usage: spile clear KEY --limit TEXT... [option...]\n"
     "       spile clear KEY --limits FILE --route ROUTE [option...]\n"
     "       spile clear --simulated [--store URI]\n"
     "Forgets KEY's bucket under each limit: it is full again.\n\n" STORE_HELP PREFIX_HELP LIMIT_HELP FILE_HELP
     "  --simulated     instead: remove what killed runs of simulate have left in the store\n" TIMEOUT_HELP JSON_HELP},
    {"simulate", simulate_run, OPTION_STORE | OPTION_LIMIT | OPTION_COST | OPTION_TIMEOUT,
     "usage: spile simulate --limit TEXT... [option...] [TRACE.csv]\n"
     "Decides each line at_ms,key or at_ms,key,cost of the trace (or standard input) at its own time; prints CSV.\n\n"
     "  --store URI     the store to decide in, apart from its real buckets (default memory:)\n" LIMIT_HELP
     "  --cost N        cost of lines that have none (default 1)\n" TIMEOUT_HELP},
    {"replay", replay_run,
     OPTION_LIMIT | OPTION_LIMITS | OPTION_TIER | OPTION_BY | OPTION_FIELDS | OPTION_TOP | OPTION_JSON,
     "usage: spile replay --limit TEXT... [option...] [ACCESS.log...]\n"
     "       spile replay --limits FILE [--tier NAME] [option...] [ACCESS.log...]\n"
     "Says who of access logs (common, combined or JSON format, gzip or not; or standard input) would have been "
     "denied,\n"
     "when and how often.\n\n" LIMIT_HELP
     "  --limits FILE   instead: what a limits file has for each request (see spile check), by the client's address;\n"
     "                  limits that are not by address, route or global are left out and named\n"
     "  --tier NAME     with --limits: as if all callers were of this tier\n"
     "  --by ip|route   whose bucket: the client's (default) or that of METHOD and path\n"
     "  --fields LIST   what a JSON log calls its members, such as time=ts,ip=request.client_ip; the fields are time,\n"
     "                  ip, method, path, status and request (METHOD PATH PROTOCOL in one)\n"
     "  --top N         rows of each table, 0 to 1000 (default 10)\n"
     "  --json          the summary as one JSON object\n"
     "\nExits 0 when it has decided the requests, whatever the decisions, 2 on a wrong command line or file of limits, "
     "or "
     "when\n"
     "there are lines and none could be used, 3 when a log cannot be read to its end.\n"},
    {"check", check_run, OPTION_EXPLAIN | OPTION_TIER | OPTION_MARKDOWN | OPTION_JSON,
     "usage: spile check FILE [option...]\n"
     "Says every fault of a limits file with its place, and what the file means.\n\n"
     "  --explain ROUTE what a request meets, in sentences, such as 'POST /search'\n"
     "  --tier NAME     for callers of this tier\n"
     "  --markdown      a table to publish\n"
     "  --json          one JSON object a line: faults, then entries\n"
     "\nExits 0 when the file can be loaded, warnings or not, 2 when it has errors.\n"},
    {"show", show_run, OPTIONS_STORE | OPTION_LIMITS | OPTION_JSON,
     "usage: spile show [--store URI] [--limits FILE | --key-prefix P] [KEY]\n"
     "Lists what is stored: key, limit, its numbers, what is left.\n\n" STORE_HELP PREFIX_HELP
     "  --limits FILE   what is stored under the key_prefix of this limits file\n" TIMEOUT_HELP JSON_HELP},
    {"repair", repair_run, OPTION_STORE | OPTION_TIMEOUT | OPTION_JSON,
     "usage: spile repair [--store lmdb:PATH]\n"
     "Moves a damaged LMDB file aside, never over another, so that an empty one begins; leaves a sound one alone.\n"
     "Nobody may have the store open.\n\n"
     "  --store URI     lmdb:PATH; else $SPILE_STORE, else LMDB under $XDG_STATE_HOME/spile or ~/.local/state/spile\n"
     "  --timeout MS    how long to wait for who is just opening the store, 1 to 3600000 (default 1000)\n" JSON_HELP
     "\nExits 0 when the file was moved or is sound, 2 on a wrong command line, 3 when it cannot be read or moved, or "
     "is "
     "in use.\n"},
};

enum { VERB_COUNT = sizeof(verbs) / sizeof(verbs[0]) };

static const char general_help[] = "usage: spile VERB [option...] [argument...]\n"
                                   "Decides whether a caller may go ahead now and, if not, exactly when.\n\n"
                                   "  take KEY        take tokens, if they are there\n"
                                   "  peek KEY        say what a take would find\n"
                                   "  charge KEY      charge tokens, also below zero where the limit has a debt\n"
                                   "  refund KEY      give tokens back\n"
                                   "  clear KEY       make a bucket full again\n"
                                   "  simulate        decide a trace at its own times\n"
                                   "  replay          decide an access log\n"
                                   "  check           find the faults of a limits file and explain it\n"
                                   "  show            list what is stored\n"
                                   "  repair          move a damaged LMDB file aside\n\n"
                                   "spile VERB --help tells a verb's options. spile --version tells the version.\n"
                                   "Example: spile take --limit 5/s me && echo go\n";

static int verb_unknown(const char *word) {
  const char *names[VERB_COUNT + 2];
  for (size_t i = 0; i < VERB_COUNT; i++)
    names[i] = verbs[i].name;
  names[VERB_COUNT] = "--help";
  names[VERB_COUNT + 1] = "--version";
  /* An option here is one of a verb, or mistyped. */
  size_t first = word[0] == '-' ? VERB_COUNT : 0;
  size_t n = word[0] == '-' ? 2 : VERB_COUNT;
  const char *nearest = nearest_name(word, strlen(word), names + first, n);
  if (!is_showable(word, strlen(word)))
    return message(EXIT_USAGE, "the first word is not a verb; the nearest is %s; see spile --help", nearest);
  return message(EXIT_USAGE, "no verb %s; the nearest is %s; see spile --help", word, nearest);
}

static int verb_run(int argc, char **argv) {
  if (argc < 2) {
    (void)fputs(general_help, stderr);
    return EXIT_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    output("%s", general_help);
    return EXIT_ALLOWED;
  }
  if (strcmp(argv[1], "--version") == 0) {
    output("spile %s\n", spile_version());
    return EXIT_ALLOWED;
  }
  size_t i = 0;
  while (i < VERB_COUNT && strcmp(verbs[i].name, argv[1]) != 0)
    i++;
  if (i == VERB_COUNT)
    return verb_unknown(argv[1]);

  cli_options options;
  int status = options_parse(&options, verbs[i].name, verbs[i].options | OPTION_HELP, argc - 2, argv + 2);
  if (status == EXIT_ALLOWED && options.given & OPTION_HELP)
    output("%s", verbs[i].help);
  else if (status == EXIT_ALLOWED)
    status = verbs[i].run(&options);
  options_finish(&options);
  return status;
}

/* ---- The process ---- */

/*
 * A standard stream that is closed would have its number given to the next file opened, and output would go into the
 * store. A closed one becomes one that fails.
 */
static void streams_hold(void) {
  for (int fd = 0; fd <= 2; fd++) {
    if (fcntl(fd, F_GETFD) < 0)
      (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

int main(int argc, char **argv) {
  streams_hold();
  /* Writing to a pipe that is closed fails instead of killing, so that simulated buckets are still removed. */
  (void)signal(SIGPIPE, SIG_IGN);
  return output_finish(verb_run(argc, argv));
}
