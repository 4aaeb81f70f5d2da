/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads access logs. A line that is no request of use is counted and the first few are shown; only a file that cannot
 * be read on ends the reading.
 */
#ifndef SPILE_CLI_REPLAY_READ_H
#define SPILE_CLI_REPLAY_READ_H

#include "cli/options.h"
#include "cli/requests.h"

typedef struct replay_lines {
  uint64_t unparsed;     /* lines left out */
  uint64_t answered_429; /* requests that the server itself limited */
} replay_lines;

/*
 * Reads all logs that the command line names, or standard input. A request is of use when it has what the buckets are
 * kept by: its client, or its route. Logs of which no line is of use are none, but for empty ones.
 *
 * @return EXIT_ALLOWED, or another with a message
 */
int replay_read(request_log *into, replay_lines *lines, const cli_options *options);

#endif
