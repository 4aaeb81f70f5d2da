/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses come from three hands. A server hands over its peer, often with a port; proxies write what they like, with
 * brackets, ports and zones; people write networks into a file. Around the address itself everything is stripped here,
 * and what is left must please inet_pton, which takes no leading zeros, no hex, no short forms and no spaces.
 *
 * A dual-stack server sees IPv4 callers as ::ffff:a.b.c.d. They are unpacked while they are read, before any prefix is
 * applied: under a /64 all of them would be one caller. The other forms that carry IPv4 are told apart by no kernel but
 * by the network, so they stay IPv6 where trust is asked for, and become IPv4 only when they are written as a subject.
 */
#include "limits/network.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>

typedef struct slice {
  const char *at;
  size_t len;
} slice;

static slice slice_strip(slice s) {
  while (s.len > 0 && (s.at[0] == ' ' || s.at[0] == '\t')) {
    s.at++;
    s.len--;
  }
  while (s.len > 0 && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
    s.len--;
  return s;
}

/* Reads a whole number of at most `digits` digits. @return false: it is not one, or is above max */
static bool slice_number(slice s, size_t digits, unsigned max, unsigned *out) {
  if (s.len < 1 || s.len > digits)
    return false;
  unsigned number = 0;
  for (size_t i = 0; i < s.len; i++) {
    if (s.at[i] < '0' || s.at[i] > '9')
      return false;
    number = number * 10 + (unsigned)(s.at[i] - '0');
  }
  *out = number;
  return number <= max;
}

/* ":443", and what RFC 7239 lets a proxy write to hide one: ":_abc". */
static bool slice_is_port(slice s) {
  unsigned port;
  if (s.len < 2 || s.at[0] != ':')
    return false;
  if (s.at[1] != '_')
    return slice_number((slice){s.at + 1, s.len - 1}, 5, 65535, &port);
  for (size_t i = 2; i < s.len; i++) {
    char c = s.at[i];
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '.' && c != '_' && c != '-')
      return false;
  }
  return s.len > 2;
}

static bool address_read(int family, slice s, uint8_t *bytes) {
  char text[INET6_ADDRSTRLEN];
  /* A NUL inside would end the text early and hide what follows. */
  if (s.len < 1 || s.len >= sizeof(text) || memchr(s.at, '\0', s.len) != NULL)
    return false;
  memcpy(text, s.at, s.len);
  text[s.len] = '\0';
  return inet_pton(family, text, bytes) == 1;
}

/* IPv6 without brackets, with or without a zone. */
static bool address_read_v6(slice s, uint8_t *bytes) {
  const char *zone = s.len > 0 ? memchr(s.at, '%', s.len) : NULL;
  if (zone != NULL) {
    if (zone == s.at + s.len - 1)
      return false;
    s.len = (size_t)(zone - s.at);
  }
  return address_read(AF_INET6, s, bytes);
}

static bool address_is_mapped(const uint8_t *bytes) {
  static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return memcmp(bytes, mapped, sizeof(mapped)) == 0;
}

static spile__address address_v4(const uint8_t *bytes) {
  spile__address address = {.is_v6 = false};
  memcpy(address.bytes, bytes, 4);
  return address;
}

static spile__address address_v6(const uint8_t *bytes) {
  if (address_is_mapped(bytes))
    return address_v4(bytes + 12);
  spile__address address = {.is_v6 = true};
  memcpy(address.bytes, bytes, 16);
  return address;
}

bool spile__address_parse(spile__address *out, const char *text, size_t len) {
  slice s = slice_strip((slice){text, len});
  uint8_t bytes[16];
  if (s.len == 0)
    return false;

  if (s.at[0] == '[') {
    const char *close = memchr(s.at, ']', s.len);
    if (close == NULL)
      return false;
    slice inside = {s.at + 1, (size_t)(close - s.at - 1)};
    slice after = {close + 1, s.len - inside.len - 2};
    if ((after.len > 0 && !slice_is_port(after)) || !address_read_v6(inside, bytes))
      return false;
    *out = address_v6(bytes);
    return true;
  }

  if (address_read_v6(s, bytes)) {
    *out = address_v6(bytes);
    return true;
  }
  const char *colon = memchr(s.at, ':', s.len);
  if (colon != NULL) {
    size_t host_len = (size_t)(colon - s.at);
    if (!slice_is_port((slice){colon, s.len - host_len}))
      return false;
    s.len = host_len;
  }
  if (!address_read(AF_INET, s, bytes))
    return false;
  *out = address_v4(bytes);
  return true;
}

/* Whether the first `prefix` bits agree. */
static bool bits_equal(const uint8_t *a, const uint8_t *b, unsigned prefix) {
  size_t whole = prefix / 8;
  unsigned rest = prefix % 8;
  if (memcmp(a, b, whole) != 0)
    return false;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

/* Clears what is beyond the first `prefix` of 128 bits. */
static void bits_cut(uint8_t bytes[16], unsigned prefix) {
  for (unsigned i = 0; i < 16; i++) {
    unsigned kept = prefix > i * 8 ? prefix - i * 8 : 0;
    if (kept < 8)
      bytes[i] = (uint8_t)(bytes[i] & (0xff00u >> kept));
  }
}

bool spile__network_parse(spile__network *out, const char *text, size_t len) {
  slice s = slice_strip((slice){text, len});
  const char *slash = s.len > 0 ? memchr(s.at, '/', s.len) : NULL;
  slice host = {s.at, slash != NULL ? (size_t)(slash - s.at) : s.len};
  uint8_t bytes[16] = {0};
  bool is_v6 = address_read(AF_INET6, host, bytes);
  if (!is_v6 && !address_read(AF_INET, host, bytes))
    return false;
  unsigned bits = is_v6 ? 128 : 32;
  unsigned prefix = bits;
  slice length = {s.at + host.len + 1, slash != NULL ? s.len - host.len - 1 : 0};
  if (slash != NULL && (!slice_number(length, 3, bits, &prefix) || (length.len > 1 && length.at[0] == '0')))
    return false;

  uint8_t base[16];
  memcpy(base, bytes, sizeof(base));
  bits_cut(base, prefix);
  if (memcmp(base, bytes, sizeof(base)) != 0)
    return false;
  /* A network of mapped addresses is one of IPv4, as each of its addresses is. */
  bool mapped = is_v6 && prefix >= 96 && address_is_mapped(bytes);
  out->base = is_v6 ? address_v6(bytes) : address_v4(bytes);
  out->prefix = mapped ? prefix - 96 : prefix;
  if (is_v6 && !mapped) {
    /* Shorter than the mapped prefix: IPv6, whatever its base looks like. */
    out->base.is_v6 = true;
    memcpy(out->base.bytes, bytes, sizeof(bytes));
  }
  return true;
}

bool spile__network_has(const spile__network *network, const spile__address *address) {
  return network->base.is_v6 == address->is_v6 && bits_equal(network->base.bytes, address->bytes, network->prefix);
}

void spile__address_spell(const spile__address *address, char out[SPILE__ADDRESS_TEXT_MAX]) {
  (void)inet_ntop(address->is_v6 ? AF_INET6 : AF_INET, address->bytes, out, SPILE__ADDRESS_TEXT_MAX);
}

/* Whether an IPv6 address is an IPv4 one in a form that the network makes: its last four bytes are the address. */
static bool address_carries_v4(const uint8_t *bytes) {
  static const uint8_t translated[12] = {0, 0x64, 0xff, 0x9b};
  static const uint8_t compatible[12] = {0};
  /* ::, ::1 and what else is near them is no IPv4 address: none begins with 0. */
  return memcmp(bytes, translated, sizeof(translated)) == 0 ||
         (memcmp(bytes, compatible, sizeof(compatible)) == 0 && bytes[12] != 0);
}

void spile__address_write(const spile__address *address, unsigned v6_prefix, char out[SPILE__ADDRESS_TEXT_MAX]) {
  if (!address->is_v6 || address_carries_v4(address->bytes)) {
    (void)inet_ntop(AF_INET, address->is_v6 ? address->bytes + 12 : address->bytes, out, SPILE__ADDRESS_TEXT_MAX);
    return;
  }
  uint8_t bytes[16];
  memcpy(bytes, address->bytes, sizeof(bytes));
  bits_cut(bytes, v6_prefix);
  (void)inet_ntop(AF_INET6, bytes, out, SPILE__ADDRESS_TEXT_MAX);
  if (v6_prefix >= 128)
    return;
  /* "/" and at most three digits: an address has 45 bytes at most, so they fit. */
  char *at = out + strlen(out);
  *at++ = '/';
  if (v6_prefix >= 100)
    *at++ = (char)('0' + v6_prefix / 100);
  if (v6_prefix >= 10)
    *at++ = (char)('0' + v6_prefix / 10 % 10);
  *at++ = (char)('0' + v6_prefix % 10);
  *at = '\0';
}
