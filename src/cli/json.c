/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/json.h"

#include <stdint.h>
#include <string.h>

#include "cli/cursor.h"

enum { JSON_DEPTH_MAX = 32 };

typedef struct json_scanner {
  cursor text;
  json_visitor *visit;
  void *user;
  char path[JSON_PATH_SIZE];
  size_t path_len;
  int hidden; /* arrays and members with too long a path around this place */
  int depth;
} json_scanner;

static const char cut_off[] = "the JSON object does not end";
static const char no_value[] = "a member of the JSON object has no value";

static void skip_white(cursor *text) {
  while (text->at < text->end && (*text->at == ' ' || *text->at == '\t' || *text->at == '\r' || *text->at == '\n'))
    text->at++;
}

/* ---- Scalars ---- */

/* @return the value of a hexadecimal digit, or -1 */
static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* `digits` hexadecimal digits at `at`. @return their value, or -1 */
static int32_t hex_read(const char *at, const char *end, int digits) {
  if (end - at < digits)
    return -1;
  int32_t value = 0;
  for (; digits > 0; digits--) {
    int digit = hex_digit(*at++);
    if (digit < 0)
      return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* Reads a text whose first quote has been read. */
static const char *read_text(cursor *text, const char **raw, size_t *raw_len) {
  *raw = text->at;
  while (text->at < text->end && *text->at != '"') {
    if ((unsigned char)*text->at < 0x20)
      return "a text in the JSON object has a control byte";
    if (*text->at++ != '\\')
      continue;
    if (text->at == text->end)
      return cut_off;
    char c = *text->at++;
    int digits = c == 'u' ? 4 : c == 'x' ? 2 : 0;
    if (strchr("\"\\/bfnrtux", c) == NULL || c == '\0')
      return "a text in the JSON object has a \\ that is none of JSON's";
    if (digits > 0 && hex_read(text->at, text->end, digits) < 0)
      return text->end - text->at < digits ? cut_off : "a \\ in the JSON object lacks its hexadecimal digits";
    text->at += digits;
  }
  *raw_len = (size_t)(text->at - *raw);
  return cursor_skip(text, '"') ? NULL : cut_off;
}

static bool read_digits(cursor *text) {
  const char *start = text->at;
  while (cursor_at_digit(text))
    text->at++;
  return text->at > start;
}

static bool read_number(cursor *text) {
  (void)cursor_skip(text, '-');
  if (!read_digits(text))
    return false;
  if (cursor_skip(text, '.') && !read_digits(text))
    return false;
  if (!cursor_skip(text, 'e') && !cursor_skip(text, 'E'))
    return true;
  if (!cursor_skip(text, '-'))
    (void)cursor_skip(text, '+');
  return read_digits(text);
}

static bool read_word(cursor *text) {
  static const char *const words[] = {"true", "false", "null"};
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    size_t len = strlen(words[i]);
    if ((size_t)(text->end - text->at) >= len && memcmp(text->at, words[i], len) == 0) {
      text->at += len;
      return true;
    }
  }
  return false;
}

/* ---- Objects ---- */

static const char *read_value(json_scanner *in);

static const char *read_scalar(json_scanner *in) {
  json_type type = JSON_TEXT;
  const char *raw = in->text.at;
  size_t raw_len = 0;
  if (cursor_skip(&in->text, '"')) {
    const char *fault = read_text(&in->text, &raw, &raw_len);
    if (fault != NULL)
      return fault;
  } else {
    type = cursor_at_digit(&in->text) || *raw == '-' ? JSON_NUMBER : JSON_WORD;
    if (!(type == JSON_NUMBER ? read_number(&in->text) : read_word(&in->text)))
      return in->text.at == in->text.end ? cut_off : no_value;
    raw_len = (size_t)(in->text.at - raw);
  }
  if (in->hidden == 0)
    in->visit(in->user, in->path, in->path_len, type, raw, raw_len);
  return NULL;
}

/* Reads "name": value, with the name added to the path meanwhile. */
static const char *read_member(json_scanner *in) {
  const char *name;
  size_t name_len;
  if (!cursor_skip(&in->text, '"'))
    return in->text.at == in->text.end ? cut_off : "a member of the JSON object has no name in quotes";
  const char *fault = read_text(&in->text, &name, &name_len);
  if (fault != NULL)
    return fault;
  skip_white(&in->text);
  if (!cursor_skip(&in->text, ':'))
    return in->text.at == in->text.end ? cut_off : no_value;
  size_t outer_len = in->path_len;
  size_t dot = outer_len > 0 ? 1 : 0;
  bool fits = name_len + dot <= JSON_PATH_SIZE - outer_len;
  if (fits) {
    memcpy(in->path + outer_len, ".", dot);
    memcpy(in->path + outer_len + dot, name, name_len);
    in->path_len += dot + name_len;
  }
  in->hidden += fits ? 0 : 1;
  fault = read_value(in);
  in->hidden -= fits ? 0 : 1;
  in->path_len = outer_len;
  return fault;
}

/* Reads what stands between the brackets of an object or array whose first one has been read. */
static const char *read_inside(json_scanner *in, char close) {
  if (++in->depth > JSON_DEPTH_MAX)
    return "the JSON object is nested more than 32 deep";
  skip_white(&in->text);
  if (cursor_skip(&in->text, close)) {
    in->depth--;
    return NULL;
  }
  for (;;) {
    skip_white(&in->text);
    const char *fault = close == '}' ? read_member(in) : read_value(in);
    if (fault != NULL)
      return fault;
    skip_white(&in->text);
    if (cursor_skip(&in->text, close))
      break;
    if (!cursor_skip(&in->text, ','))
      return in->text.at == in->text.end ? cut_off : "the JSON object has no comma between two values";
  }
  in->depth--;
  return NULL;
}

static const char *read_value(json_scanner *in) {
  skip_white(&in->text);
  if (in->text.at == in->text.end)
    return cut_off;
  if (cursor_skip(&in->text, '{'))
    return read_inside(in, '}');
  if (!cursor_skip(&in->text, '['))
    return read_scalar(in);
  in->hidden++;
  const char *fault = read_inside(in, ']');
  in->hidden--;
  return fault;
}

const char *json_scan(const char *text, size_t len, json_visitor *visit, void *user) {
  json_scanner in = {.text = {.at = text, .end = text + len}, .visit = visit, .user = user};
  skip_white(&in.text);
  if (!cursor_skip(&in.text, '{'))
    return "it is no JSON object";
  const char *fault = read_inside(&in, '}');
  if (fault != NULL)
    return fault;
  skip_white(&in.text);
  return in.text.at == in.text.end ? NULL : "something stands behind the JSON object";
}

/* ---- Texts ---- */

/* A code point as UTF-8; half a surrogate pair as if it were one, so that no two texts become the same. */
static size_t utf8_write(char *out, int32_t point) {
  if (point < 0x80) {
    out[0] = (char)point;
    return 1;
  }
  if (point < 0x800) {
    out[0] = (char)(0xc0 | point >> 6);
    out[1] = (char)(0x80 | (point & 0x3f));
    return 2;
  }
  if (point < 0x10000) {
    out[0] = (char)(0xe0 | point >> 12);
    out[1] = (char)(0x80 | (point >> 6 & 0x3f));
    out[2] = (char)(0x80 | (point & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | point >> 18);
  out[1] = (char)(0x80 | (point >> 12 & 0x3f));
  out[2] = (char)(0x80 | (point >> 6 & 0x3f));
  out[3] = (char)(0x80 | (point & 0x3f));
  return 4;
}

/* The code point of \uXXXX or of a pair of them, behind the u. @return behind it */
static const char *read_point(const char *at, const char *end, int32_t *point) {
  *point = hex_read(at, end, 4);
  at += 4;
  if (*point < 0xd800 || *point > 0xdbff || end - at < 6 || at[0] != '\\' || at[1] != 'u')
    return at;
  int32_t low = hex_read(at + 2, end, 4);
  if (low < 0xdc00 || low > 0xdfff)
    return at;
  *point = 0x10000 + (*point - 0xd800) * 0x400 + (low - 0xdc00);
  return at + 6;
}

size_t json_decode(char *out, const char *raw, size_t raw_len) {
  static const char letters[] = "bfnrt";
  static const char meanings[] = "\b\f\n\r\t";
  const char *end = raw + raw_len;
  size_t n = 0;
  for (const char *at = raw; at < end;) {
    if (*at != '\\') {
      out[n++] = *at++;
      continue;
    }
    char c = at[1];
    at += 2;
    const char *letter = strchr(letters, c);
    if (c == 'u') {
      int32_t point;
      at = read_point(at, end, &point);
      n += utf8_write(out + n, point);
    } else if (c == 'x') {
      out[n++] = (char)hex_read(at, end, 2);
      at += 2;
    } else {
      out[n++] = letter != NULL ? meanings[letter - letters] : c;
    }
  }
  return n;
}
