/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP server (libmicrohttpd) under a limits file.
 *
 * limit_request is the middleware: it asks before a handler runs, and its headers go into every answer. A caller is the
 * account that an X-Api-Key belongs to, else an address. A key that nobody has is no account: as a bucket of its own
 * each invented key would be a new, full one.
 *
 * http_server --help tells its options.
 *
 * SIGHUP reads the limits again; a file with faults is reported and changes nothing. SIGTERM and SIGINT end the server.
 * /authorize answers for a gateway (gateway.md); /metrics is for Prometheus, and with -w of whichever worker it met.
 * Loopback and UNIX-socket peers may name the client in X-Forwarded-For, so a proxy in front must set it.
 */
#include <errno.h>
#include <getopt.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <spile/http.h>
#include <spile/metrics.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "http_accounts.h"
#include "http_listen.h"

enum { WORKERS_MAX = 64, THREADS_MAX = 64, IDLE_SECONDS = 30 };

typedef struct server {
  const char *limits_file, *store, *address, *accounts_file;
  long threads, workers, remember_s;
  spile_limiter *limiter; /* NULL: nothing is limited */
  spile_http_settings *settings;
} server;

/* ---- The middleware ---- */

typedef struct header_search {
  const char *name, *value;
  size_t left; /* lines of that name before the one that is wanted */
} header_search;

static enum MHD_Result header_visit(void *user, enum MHD_ValueKind kind, const char *name, const char *value) {
  (void)kind;
  header_search *search = user;
  if (strcasecmp(name, search->name) != 0 || search->left-- > 0)
    return MHD_YES;
  search->value = value != NULL ? value : "";
  return MHD_NO;
}

static const char *header_line(void *connection, const char *name, size_t index) {
  header_search search = {.name = name, .left = index};
  (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, header_visit, &search);
  return search.value;
}

/* The address at the other end of the connection; "" where it has none. */
static void peer_of(struct MHD_Connection *connection, char *out, socklen_t size) {
  out[0] = '\0';
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  const struct sockaddr *peer = info != NULL ? info->client_addr : NULL;
  if (peer == NULL || (peer->sa_family != AF_INET && peer->sa_family != AF_INET6))
    return;
  socklen_t len = peer->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  if (getnameinfo(peer, len, out, size, NULL, 0, NI_NUMERICHOST) != 0)
    out[0] = '\0';
}

/* Asks the limits. @return whether the request may go ahead; `answer` has the headers, and what to say when not */
static bool limit_request(const server *s, struct MHD_Connection *connection, const char *method, const char *path,
                          const char *route, spile_http_response *answer) {
  if (s->limiter == NULL)
    return true;
  char peer[NI_MAXHOST];
  peer_of(connection, peer, sizeof(peer));
  account a;
  bool known = account_find(&a, MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "X-Api-Key"));
  spile_http_request request = SPILE_HTTP_REQUEST_INIT;
  request.settings = s->settings;
  request.method = method, request.path = path, request.route = route;
  request.peer = peer[0] != '\0' ? peer : NULL;
  request.header = header_line, request.header_user = connection;
  request.tenant = known ? a.tenant : NULL;
  request.tier = known ? a.tier : "anonymous";
  return spile_http_check(s->limiter, &request, answer) == SPILE_ALLOWED;
}

/* ---- Answers ---- */

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, const char *type, const char *body,
                             size_t len, const spile_http_response *answer, const char *limit_status) {
  struct MHD_Response *response = MHD_create_response_from_buffer(len, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
  if (response == NULL)
    return MHD_NO;
  if (type != NULL)
    (void)MHD_add_response_header(response, "Content-Type", type);
  for (size_t i = 0; i < answer->header_count; i++)
    (void)MHD_add_response_header(response, answer->headers[i].name, answer->headers[i].value);
  if (limit_status != NULL)
    (void)MHD_add_response_header(response, "X-Limit-Status", limit_status);
  enum MHD_Result result = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return result;
}

static enum MHD_Result metrics_reply(const server *s, struct MHD_Connection *connection,
                                     const spile_http_response *answer) {
  char *text = NULL;
  size_t size = 0;
  size_t needed = 1;
  while (s->limiter != NULL && spile_metrics_text(s->limiter, text, size, &needed) == SPILE_OK && needed > size) {
    size = needed + 1024; /* counters get longer meanwhile */
    char *larger = realloc(text, size);
    if (larger == NULL)
      break;
    text = larger;
  }
  bool fits = text != NULL && needed <= size;
  enum MHD_Result result = reply(connection, fits ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                                 "text/plain; version=0.0.4", fits ? text : "", fits ? strlen(text) : 0, answer, NULL);
  free(text);
  return result;
}

/* nginx takes 2xx, 401 and 403 of an authorizer, so all refusals are 403 and X-Limit-Status has the status. */
static enum MHD_Result authorize(const server *s, struct MHD_Connection *connection) {
  char text[SPILE_HTTP_BUFFER_SIZE];
  spile_http_response answer = SPILE_HTTP_RESPONSE_INIT(text, sizeof(text));
  const char *method = header_line(connection, "X-Original-Method", 0);
  const char *path = header_line(connection, "X-Original-URI", 0);
  if (method == NULL || path == NULL)
    return reply(connection, MHD_HTTP_BAD_REQUEST, NULL, "", 0, &answer, NULL);
  if (limit_request(s, connection, method, path, NULL, &answer))
    return reply(connection, MHD_HTTP_NO_CONTENT, NULL, "", 0, &answer, NULL);
  char status[16];
  (void)snprintf(status, sizeof(status), "%d", answer.status);
  return reply(connection, MHD_HTTP_FORBIDDEN, NULL, "", 0, &answer, status);
}

static const struct {
  const char *method, *path, *body;
} routes[] = {
    {"POST", "/search", "{\"results\":[]}\n"},   {"POST", "/export", "{\"export\":\"begun\"}\n"},
    {"POST", "/login", "{\"login\":\"ok\"}\n"},  {"POST", "/reset", "{\"reset\":\"mailed\"}\n"},
    {"GET", "/health", "{\"health\":\"ok\"}\n"}, {"GET", "/metrics", NULL},
};

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *body, size_t *body_len, void **seen) {
  (void)version;
  (void)body;
  /* Called when the headers are there, for each piece of a body, and at the end. Only then is it answered: an earlier
   * answer closes the connection, and a client that is still sending may never read it. */
  bool first = *seen == NULL;
  *seen = user;
  if (first || *body_len > 0) {
    *body_len = 0;
    return MHD_YES;
  }
  const server *s = user;
  if (strcmp(path, "/authorize") == 0)
    return authorize(s, connection);

  size_t i = 0;
  while (i < sizeof(routes) / sizeof(routes[0]) &&
         (strcmp(routes[i].method, method) != 0 || strcmp(routes[i].path, path) != 0))
    i++;
  bool found = i < sizeof(routes) / sizeof(routes[0]);
  char text[SPILE_HTTP_BUFFER_SIZE];
  spile_http_response answer = SPILE_HTTP_RESPONSE_INIT(text, sizeof(text));
  if (!limit_request(s, connection, method, path, found ? routes[i].path : NULL, &answer))
    return reply(connection, (unsigned)answer.status, NULL, answer.body, answer.body_len, &answer, NULL);
  if (!found)
    return reply(connection, MHD_HTTP_NOT_FOUND, "application/json", "{\"error\":\"not_found\"}\n", 22, &answer, NULL);
  if (routes[i].body == NULL)
    return metrics_reply(s, connection, &answer);
  return reply(connection, MHD_HTTP_OK, "application/json", routes[i].body, strlen(routes[i].body), &answer, NULL);
}

/* ---- Limits ---- */

static void show_fault(void *user, const spile_fault *fault) {
  (void)user;
  fprintf(stderr, "%s:%d:%d: %s%s%s%s; %s\n", fault->file, fault->line, fault->column,
          fault->level == SPILE_FAULT_WARNING ? "warning: " : "", fault->path, fault->path[0] != '\0' ? ": " : "",
          fault->what, fault->advice);
}

static void show_line(void *user, spile_log_level level, const char *line) {
  (void)user;
  (void)level;
  fprintf(stderr, "%s\n", line);
}

static bool limiter_open(server *s) {
  static const char *const proxies[] = {"127.0.0.0/8", "::1", "unix:"};
  spile_error error = {0};
  spile_limits *limits = NULL;
  spile_http_options http = SPILE_HTTP_OPTIONS_INIT;
  http.forwarded = SPILE_HTTP_X_FORWARDED_FOR;
  http.trusted = proxies, http.trusted_count = sizeof(proxies) / sizeof(proxies[0]);
  http.dialect = SPILE_HTTP_BOTH;
  spile_options options = SPILE_OPTIONS_INIT;
  options.log = show_line;
  options.metrics = SPILE_METRICS_TIMES;
  bool ok = spile_limits_load(&limits, s->limits_file, show_fault, NULL, &error) == SPILE_OK &&
            spile_http_settings_create(&s->settings, &http, &error) == SPILE_OK;
  if (ok)
    options.key_prefix = spile_limits_key_prefix(limits);
  ok = ok && spile_open(&s->limiter, s->store, &options, &error) == SPILE_OK &&
       spile_set_limits(s->limiter, limits, &error) == SPILE_OK;
  if (!ok)
    fprintf(stderr, "%s\n", error.message);
  spile_limits_unref(limits);
  return ok;
}

static void limits_reload(const server *s) {
  spile_error error = {0};
  spile_limits *limits = NULL;
  bool ok = s->limiter != NULL && spile_limits_load(&limits, s->limits_file, show_fault, NULL, NULL) == SPILE_OK &&
            spile_set_limits(s->limiter, limits, &error) == SPILE_OK;
  if (error.code != 0)
    fprintf(stderr, "%s\n", error.message);
  fprintf(stderr, ok ? "limits: read again\n" : "limits: those before stay in force\n");
  spile_limits_unref(limits);
}

/* ---- Processes ---- */

/* Blocked in every thread; the main one waits for them. */
static sigset_t signals;

static int signal_wait(void) {
  int number;
  return sigwait(&signals, &number) == 0 ? number : SIGTERM;
}

/* Serves until told to end. @return the exit status */
static int serve(server *s, int fd) {
  if (s->limits_file != NULL && !limiter_open(s))
    return 2;
  struct MHD_Daemon *daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, fd,
      MHD_OPTION_THREAD_POOL_SIZE, (unsigned)s->threads, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_END);
  if (daemon == NULL) {
    fprintf(stderr, "libmicrohttpd does not start with %ld threads: %s\n", s->threads, strerror(errno));
    return 2;
  }
  (void)fflush(stdout);
  int number;
  while ((number = signal_wait()) != SIGTERM && number != SIGINT) {
    if (number == SIGHUP)
      limits_reload(s);
  }
  MHD_stop_daemon(daemon);
  spile_close(s->limiter);
  spile_http_settings_free(s->settings);
  return 0;
}

/* Forks workers, each of which opens a limiter of its own, and passes signals on. One that ends on its own takes the
 * others with it, so that whoever supervises the server sees it. */
static int supervise(server *s, int fd) {
  pid_t workers[WORKERS_MAX];
  (void)fflush(stdout); /* or each would print it again */
  for (long i = 0; i < s->workers; i++) {
    pid_t parent = getpid();
    workers[i] = fork();
    if (workers[i] == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
      exit(getppid() == parent ? serve(s, fd) : 2);
    }
    if (workers[i] < 0) {
      perror("fork");
      s->workers = i;
      (void)raise(SIGCHLD);
    }
  }
  int number;
  while ((number = signal_wait()) == SIGHUP) {
    for (long i = 0; i < s->workers; i++)
      (void)kill(workers[i], SIGHUP);
  }
  int status = number == SIGCHLD ? 2 : 0;
  for (long i = 0; i < s->workers; i++)
    (void)kill(workers[i], SIGTERM);
  while (wait(NULL) > 0)
    continue;
  return status;
}

static bool number_read(const char *text, long min, long max, long *out) {
  char *end;
  *out = strtol(text, &end, 10);
  return end != text && *end == '\0' && *out >= min && *out <= max;
}

static const char usage[] =
    "usage: http_server [option...]\n"
    "An HTTP server under a limits file.\n\n"
    "  -f FILE     the limits; without it nothing is limited\n"
    "  -s URI      where the buckets are: memory: (default), lmdb:PATH, redis://HOST or redis+unix:///PATH\n"
    "  -l ADDRESS  HOST:PORT, port 0 for any that is free, or unix:PATH (default 127.0.0.1:8080)\n"
    "  -k FILE     accounts, a line each: KEY TENANT TIER\n"
    "  -c SECONDS  how long an account is remembered, 0 to 86400 (default 300)\n"
    "  -t THREADS  that answer, in each process, 1 to 64 (default 2)\n"
    "  -w WORKERS  processes that share the port, 1 to 64; not with memory:, of which each would have its own\n"
    "  -h, --help  this\n";

/* Reads the command line. @return what is wrong with it, or NULL; *help is set when only the usage is wanted */
static const char *options_read(server *s, int argc, char **argv, bool *help) {
  static const struct option words[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  bool ok = true;
  for (int option; (option = getopt_long(argc, argv, "f:s:l:k:c:t:w:h", words, NULL)) != -1;) {
    if (option == 'f')
      s->limits_file = optarg;
    else if (option == 's')
      s->store = optarg;
    else if (option == 'l')
      s->address = optarg;
    else if (option == 'k')
      s->accounts_file = optarg;
    else if (option == 'c')
      ok = number_read(optarg, 0, 86400, &s->remember_s);
    else if (option == 't')
      ok = number_read(optarg, 1, THREADS_MAX, &s->threads);
    else if (option == 'w')
      ok = number_read(optarg, 0, WORKERS_MAX, &s->workers);
    else if (option == 'h')
      *help = true;
    else
      return ""; /* getopt_long has said it */
    if (*help)
      return NULL;
    if (!ok)
      return "a number is none, or out of its range";
  }
  if (optind != argc)
    return "there is a word that belongs to no option";
  return s->workers > 0 && strncmp(s->store, "memory:", 7) == 0 ? "each worker would have a memory: of its own" : NULL;
}

int main(int argc, char **argv) {
  server s = {.store = "memory:", .address = "127.0.0.1:8080", .remember_s = 300, .threads = 2};
  bool help = false;
  const char *fault = options_read(&s, argc, argv, &help);
  if (fault != NULL && fault[0] != '\0')
    fprintf(stderr, "http_server: %s\n", fault);
  if (help || fault != NULL) {
    fputs(usage, fault != NULL ? stderr : stdout);
    return fault != NULL ? 2 : 0;
  }
  if (!accounts_init(s.accounts_file, s.remember_s)) {
    fprintf(stderr, "-k %s: the accounts cannot be read: %s\n", s.accounts_file, strerror(errno));
    return 2;
  }
  (void)sigemptyset(&signals);
  for (size_t i = 0; i < 4; i++)
    (void)sigaddset(&signals, (int[]){SIGHUP, SIGTERM, SIGINT, SIGCHLD}[i]);
  (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
  int fd = listen_on(s.address);
  if (fd < 0)
    return 2;
  int status = s.workers > 0 ? supervise(&s, fd) : serve(&s, fd);
  if (strncmp(s.address, "unix:", 5) == 0)
    (void)unlink(s.address + 5);
  return status;
}
