/* SPDX-License-Identifier: Apache-2.0 */
#include "prometheus_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 65536
#define NAME_MAX_LEN 128

typedef struct reader {
  const char *at;
  int line;
  char fault[512];
  char family[NAME_MAX_LEN];
  char type[NAME_MAX_LEN];
  /* Every sample seen, name and labels, to find one that comes twice; every family. */
  const char *seen[SAMPLES_MAX];
  size_t seen_len[SAMPLES_MAX];
  size_t seen_count;
  char families[256][NAME_MAX_LEN];
  size_t family_count;
  /* Of the series of a histogram that is being read. */
  double last_le;
  double last_count;
  bool infinite;
} reader;

static bool fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(reader *r, const char *format, ...) {
  va_list args;
  int len = snprintf(r->fault, sizeof(r->fault), "line %d: ", r->line);
  va_start(args, format);
  (void)vsnprintf(r->fault + len, sizeof(r->fault) - (size_t)len, format, args);
  va_end(args);
  return false;
}

static bool literal(reader *r, const char *text) {
  size_t len = strlen(text);
  if (strncmp(r->at, text, len) != 0)
    return fail(r, "\"%s\" expected at \"%.40s\"", text, r->at);
  r->at += len;
  return true;
}

static bool name_read(reader *r, char out[NAME_MAX_LEN]) {
  size_t len = strspn(r->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
  if (len == 0 || len >= NAME_MAX_LEN || (*r->at >= '0' && *r->at <= '9'))
    return fail(r, "no name at \"%.40s\"", r->at);
  memcpy(out, r->at, len);
  out[len] = '\0';
  r->at += len;
  return true;
}

/* One character of UTF-8, by its value: decoded and measured, which is another way than the writer's table. */
static bool utf8_read(reader *r) {
  const unsigned char *at = (const unsigned char *)r->at;
  int more = at[0] < 0x80 ? 0 : at[0] >> 5 == 6 ? 1 : at[0] >> 4 == 14 ? 2 : at[0] >> 3 == 30 ? 3 : -1;
  if (more < 0)
    return fail(r, "byte %02x begins no character", at[0]);
  unsigned value = more == 0 ? at[0] : at[0] & (0x3fU >> more);
  for (int i = 1; i <= more; i++) {
    if (at[i] >> 6 != 2)
      return fail(r, "byte %02x goes on no character", at[i]);
    value = value << 6 | (at[i] & 0x3f);
  }
  static const unsigned least[] = {0, 0x80, 0x800, 0x10000};
  if (value < least[more] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
    return fail(r, "U+%04X may not be written like this", value);
  r->at += more + 1;
  return true;
}

static bool value_read(reader *r, char *out, size_t size) {
  size_t len = 0;
  if (!literal(r, "\""))
    return false;
  while (*r->at != '"') {
    const char *start = r->at;
    if (*r->at == '\0' || *r->at == '\n')
      return fail(r, "a label's value does not end");
    if (*r->at == '\\') {
      if (strchr("\\\"n", r->at[1]) == NULL || r->at[1] == '\0')
        return fail(r, "no such escape as \\%c", r->at[1]);
      r->at += 2;
    } else if (!utf8_read(r)) {
      return false;
    }
    for (; start < r->at && len + 1 < size; start++)
      out[len++] = *start;
  }
  out[len] = '\0';
  return literal(r, "\"");
}

/* Labels in braces; `le` gets the value of the label of that name, or "". */
static bool labels_read(reader *r, char le[64]) {
  char names[8][NAME_MAX_LEN];
  size_t count = 0;
  le[0] = '\0';
  if (*r->at != '{')
    return true;
  r->at++;
  for (;;) {
    char value[2048];
    if (count == 8)
      return fail(r, "too many labels");
    if (!name_read(r, names[count]) || !literal(r, "=") || !value_read(r, value, sizeof(value)))
      return false;
    for (size_t i = 0; i < count; i++) {
      if (strcmp(names[i], names[count]) == 0)
        return fail(r, "label %s twice", names[i]);
    }
    if (strcmp(names[count], "le") == 0)
      (void)snprintf(le, 64, "%.63s", value);
    count++;
    if (*r->at == '}')
      break;
    if (!literal(r, ","))
      return false;
  }
  r->at++;
  return true;
}

static bool number_parse(reader *r, const char *text, size_t len, double *out) {
  char digits[64];
  if (len == 4 && memcmp(text, "+Inf", 4) == 0) {
    *out = INFINITY;
    return true;
  }
  if (len == 0 || len >= sizeof(digits) || strspn(text, "0123456789.") < len || text[0] == '.')
    return fail(r, "no number: \"%.*s\"", (int)len, text);
  memcpy(digits, text, len);
  digits[len] = '\0';
  char *end;
  *out = strtod(digits, &end);
  return *end == '\0' || fail(r, "no number: \"%s\"", digits);
}

static bool histogram_sample(reader *r, const char *suffix, const char *le, double value) {
  if (strcmp(suffix, "_bucket") == 0) {
    double bound;
    if (le[0] == '\0' || !number_parse(r, le, strlen(le), &bound))
      return fail(r, "a bucket without le");
    if (r->infinite) {
      r->infinite = false;
      r->last_le = -1;
      r->last_count = 0;
    }
    if (bound <= r->last_le || value < r->last_count)
      return fail(r, "le=\"%s\" does not go up", le);
    r->last_le = bound;
    r->last_count = value;
    r->infinite = isinf(bound);
    return true;
  }
  if (!r->infinite)
    return fail(r, "a histogram without +Inf");
  if (strcmp(suffix, "_count") == 0)
    return value == r->last_count || fail(r, "the count is not the +Inf bucket");
  return strcmp(suffix, "_sum") == 0 || fail(r, "no such sample of a histogram: %s", suffix);
}

static bool sample_read(reader *r) {
  const char *start = r->at;
  char name[NAME_MAX_LEN];
  char le[64];
  if (!name_read(r, name) || !labels_read(r, le))
    return false;
  size_t len = (size_t)(r->at - start);
  for (size_t i = 0; i < r->seen_count; i++) {
    if (r->seen_len[i] == len && memcmp(r->seen[i], start, len) == 0)
      return fail(r, "%.*s twice", (int)len, start);
  }
  if (r->seen_count == SAMPLES_MAX)
    return fail(r, "too many samples");
  r->seen[r->seen_count] = start;
  r->seen_len[r->seen_count++] = len;

  double value;
  if (!literal(r, " "))
    return false;
  size_t value_len = strcspn(r->at, "\n");
  if (!number_parse(r, r->at, value_len, &value))
    return false;
  r->at += value_len;
  size_t family_len = strlen(r->family);
  if (strncmp(name, r->family, family_len) != 0)
    return fail(r, "%s stands under %s", name, r->family);
  if (strcmp(r->type, "histogram") == 0)
    return histogram_sample(r, name + family_len, le, value);
  if (name[family_len] != '\0')
    return fail(r, "%s stands under %s", name, r->family);
  return strcmp(r->type, "counter") != 0 || (family_len > 6 && strcmp(name + family_len - 6, "_total") == 0) ||
         fail(r, "counter %s does not end in _total", name);
}

static bool family_read(reader *r) {
  char again[NAME_MAX_LEN];
  if (!literal(r, "# HELP ") || !name_read(r, r->family) || !literal(r, " "))
    return false;
  for (size_t i = 0; i < r->family_count; i++) {
    if (strcmp(r->families[i], r->family) == 0)
      return fail(r, "family %s twice", r->family);
  }
  memcpy(r->families[r->family_count++], r->family, sizeof(r->family));
  size_t help_len = strcspn(r->at, "\n\\");
  if (help_len == 0 || r->at[help_len] != '\n')
    return fail(r, "%s has no help, or one with a backslash", r->family);
  r->at += help_len + 1;
  r->line++;
  if (!literal(r, "# TYPE ") || !name_read(r, again) || !literal(r, " ") || !name_read(r, r->type))
    return false;
  if (strcmp(again, r->family) != 0)
    return fail(r, "TYPE of %s after HELP of %s", again, r->family);
  if (strcmp(r->type, "counter") != 0 && strcmp(r->type, "gauge") != 0 && strcmp(r->type, "histogram") != 0)
    return fail(r, "no such type: %s", r->type);
  if (strncmp(r->at, "\n#", 2) == 0 || r->at[1] == '\0')
    return fail(r, "%s has no samples", r->family);
  r->infinite = true;
  return true;
}

const char *prometheus_fault(const char *text) {
  static reader r;
  r = (reader){.at = text, .line = 1};
  while (*r.at != '\0') {
    bool good =
        *r.at == '#' ? r.infinite || strcmp(r.type, "histogram") != 0 || fail(&r, "a histogram without +Inf") : true;
    good = good && (*r.at == '#' ? family_read(&r) : sample_read(&r)) && literal(&r, "\n");
    if (!good)
      return r.fault;
    r.line++;
  }
  return r.family_count > 0 ? NULL : "there is nothing";
}

double prometheus_value(const char *text, const char *sample) {
  size_t len = strlen(sample);
  for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
    if (strncmp(at, sample, len) == 0 && at[len] == ' ')
      return strtod(at + len + 1, NULL);
  }
  return -1;
}
