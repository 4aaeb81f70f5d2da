/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/jsonline.h"

#include <string.h>

#include "cli/json.h"
#include "cli/logtime.h"
#include "cli/options.h"
#include "cli/output.h"

static const char *const field_names[FIELD_COUNT] = {"time", "ip", "method", "path", "status", "request"};

enum { KNOWN_MAX = 16 };

/* For each field the names that servers give it. Where a line has several, the first in this order counts: when a
 * request came before when it was logged, the finer time, the client before the proxy it came through, the target as
 * sent before the one rewritten. */
static const char *const known_names[FIELD_COUNT][KNOWN_MAX] = {
    [FIELD_TIME] = {"StartUTC", "start_time", "msec", "ts", "time_iso8601", "@timestamp", "timestamp", "time",
                    "time_local", "StartLocal", "date"},
    [FIELD_IP] = {"request.client_ip", "request.remote_ip", "request.remote_addr", "ClientHost", "ClientAddr",
                  "client_ip", "remote_ip", "remote_addr", "client.ip", "source.ip", "downstream_remote_address",
                  "httpRequest.remoteIp", "clientip", "client", "ip"},
    [FIELD_METHOD] = {"request.method", "RequestMethod", "request_method", "http.request.method",
                      "httpRequest.requestMethod", "method", "verb"},
    [FIELD_PATH] = {"request.uri", "RequestPath", "request_uri", "url.original", "url.path", "httpRequest.requestUrl",
                    "path", "uri", "url"},
    [FIELD_STATUS] = {"DownstreamStatus", "http.response.status_code", "httpRequest.status", "response_code",
                      "status_code", "status"},
    [FIELD_REQUEST] = {"request", "request_line"},
};

/* ---- Naming ---- */

static int field_find(const char *word, size_t len) {
  for (int i = 0; i < FIELD_COUNT; i++) {
    if (strlen(field_names[i]) == len && memcmp(field_names[i], word, len) == 0)
      return i;
  }
  return FIELD_COUNT;
}

int log_names_parse(log_names *out, const char *text) {
  *out = (log_names){.name = {NULL}};
  for (const char *at = text;;) {
    size_t len = strcspn(at, ",");
    const char *equals = memchr(at, '=', len);
    if (equals == NULL || equals == at || equals == at + len - 1)
      return message(EXIT_USAGE, "--fields is not FIELD=MEMBER,...; write it such as time=ts,ip=request.client_ip");
    size_t word_len = (size_t)(equals - at);
    int field = field_find(at, word_len);
    if (field == FIELD_COUNT)
      return message(EXIT_USAGE,
                     "--fields has a word that is no field; the nearest is %s; the fields are time, ip, method, "
                     "path, status and request",
                     nearest_name(at, word_len, field_names, FIELD_COUNT));
    if (out->name[field] != NULL)
      return message(EXIT_USAGE, "--fields names %s twice; name it once", field_names[field]);
    out->name[field] = equals + 1;
    out->len[field] = len - word_len - 1;
    if (out->len[field] > JSON_PATH_SIZE)
      return message(EXIT_USAGE, "--fields: the member for %s has more than %d bytes", field_names[field],
                     JSON_PATH_SIZE);
    if (at[len] == '\0')
      return EXIT_ALLOWED;
    at += len + 1;
  }
}

/* ---- Finding ---- */

/* What a line has for a field. */
typedef struct field_value {
  size_t rank; /* of its name, from 1; 0: nothing found */
  bool escaped;
  const char *text;
  size_t len;
} field_value;

typedef struct line_values {
  const log_names *names;
  field_value of[FIELD_COUNT];
} line_values;

/* How good a name of a field this is: 1 is the best, 0 is none. */
static size_t name_rank(const log_names *names, int field, const char *path, size_t len) {
  if (names->name[field] != NULL)
    return names->len[field] == len && memcmp(names->name[field], path, len) == 0 ? 1 : 0;
  for (size_t i = 0; i < KNOWN_MAX && known_names[field][i] != NULL; i++) {
    const char *known = known_names[field][i];
    if (known[0] == path[0] && strlen(known) == len && memcmp(known, path, len) == 0)
      return i + 1;
  }
  return 0;
}

/* Keeps a scalar for the field that has its name. "-" and "" are how servers write that there is none. */
static void value_visit(void *user, const char *path, size_t path_len, json_type type, const char *raw,
                        size_t raw_len) {
  line_values *values = user;
  bool escaped = type == JSON_TEXT && memchr(raw, '\\', raw_len) != NULL;
  bool nothing = type == JSON_WORD || raw_len == 0 || (raw_len == 1 && raw[0] == '-');
  for (int i = 0; i < FIELD_COUNT && !nothing && path_len > 0; i++) {
    size_t rank = name_rank(values->names, i, path, path_len);
    /* Of a name that is there twice the last counts, as in most readers of JSON. */
    if (rank > 0 && (values->of[i].rank == 0 || rank <= values->of[i].rank))
      values->of[i] = (field_value){.rank = rank, .escaped = escaped, .text = raw, .len = raw_len};
  }
}

/* Replaces texts that have escapes by what they stand for. The room suffices: no two fields have one text in common,
 * unless the user says so; then it is decoded once. */
static void values_decode(line_values *values, char *decoded) {
  for (int i = 0; i < FIELD_COUNT; i++) {
    field_value *value = &values->of[i];
    if (!value->escaped)
      continue;
    const char *raw = value->text;
    size_t len = json_decode(decoded, raw, value->len);
    for (int j = i; j < FIELD_COUNT; j++) {
      if (values->of[j].text == raw)
        values->of[j] = (field_value){.rank = values->of[j].rank, .text = decoded, .len = len};
    }
    decoded += len;
  }
}

/* ---- The request ---- */

static int status_of(const field_value *value) {
  int64_t status;
  return value->rank > 0 && number_parse(value->text, value->len, 999, &status) ? (int)status : 0;
}

const char *jsonline_parse(log_line *out, const char *line, size_t len, const log_names *names, char *decoded) {
  *out = (log_line){.client = NULL};
  line_values values = {.names = names};
  const char *fault = json_scan(line, len, value_visit, &values);
  if (fault != NULL)
    return fault;
  values_decode(&values, decoded);
  const field_value *time = &values.of[FIELD_TIME];
  if (time->rank == 0)
    return "it has no member for the time; name it with --fields time=MEMBER";
  fault = logtime_read(&out->time_ms, time->text, time->len);
  if (fault != NULL)
    return fault;
  const field_value *ip = &values.of[FIELD_IP];
  const field_value *method = &values.of[FIELD_METHOD];
  const field_value *path = &values.of[FIELD_PATH];
  const field_value *request = &values.of[FIELD_REQUEST];
  if (ip->rank > 0)
    logline_set_client(out, ip->text, ip->len);
  if (method->rank > 0 && path->rank > 0)
    logline_set_target(out, method->text, method->len, path->text, path->len);
  else if (request->rank > 0)
    logline_set_request(out, request->text, request->len);
  out->status = status_of(&values.of[FIELD_STATUS]);
  return NULL;
}
