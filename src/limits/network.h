/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IP addresses and networks: reading what servers, proxies and people write, and one spelling for each.
 */
#ifndef SPILE_LIMITS_NETWORK_H
#define SPILE_LIMITS_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An address. IPv4 mapped into IPv6 (::ffff:0:0/96) is IPv4. */
typedef struct spile__address {
  uint8_t bytes[16]; /* 4 or 16, network order; the rest 0 */
  bool is_v6;
} spile__address;

typedef struct spile__network {
  spile__address base;
  unsigned prefix; /* bits, 0 to 32 or 128 */
} spile__network;

#define SPILE__ADDRESS_TEXT_MAX 64

/*
 * Reads an address: "192.0.2.1", "2001:db8::1", also with spaces around it, in brackets, with a port or a zone, which
 * are dropped. The last group of an IPv6 address without brackets is no port.
 * @return false: it is not one
 */
bool spile__address_parse(spile__address *out, const char *text, size_t len);

/* Reads "10.0.0.0/8", "2001:db8::/32" or one address. @return false: it is not one, or has bits beyond its prefix */
bool spile__network_parse(spile__network *out, const char *text, size_t len);

/* IPv4 is in IPv4 networks alone, IPv6 in those of IPv6. */
bool spile__network_has(const spile__network *network, const spile__address *address);

/* Writes a whole address in its one spelling (RFC 5952), so that reading it gives the same address again. */
void spile__address_spell(const spile__address *address, char out[SPILE__ADDRESS_TEXT_MAX]);

/*
 * Writes whose address it is, for a subject: in its one spelling, cut to `v6_prefix` bits and with "/PREFIX" where that
 * cuts. An IPv4 address that IPv6 carries as a whole (64:ff9b::/96 of RFC 6052, the old ::/96) is written as IPv4.
 */
void spile__address_write(const spile__address *address, unsigned v6_prefix, char out[SPILE__ADDRESS_TEXT_MAX]);

#endif
