/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile repair: a damaged LMDB file is moved aside, and the next use begins an empty one. A sound file is left alone.
 */
#include <string.h>

#include "cli/output.h"
#include "cli/store.h"
#include "cli/verbs.h"

int repair_run(const cli_options *options) {
  if (options->argument_count > 0)
    return message(EXIT_USAGE, "repair takes no arguments; name the store by --store; see spile repair --help");
  const char *uri = options->store;
  char address[STORE_ADDRESS_SIZE];
  int status = store_find(&uri, address);
  if (status != EXIT_ALLOWED)
    return status;

  spile_options settings = SPILE_OPTIONS_INIT;
  settings.timeout_ms = options->timeout_ms;
  settings.log = store_log;
  spile_error error = {0};
  char moved_to[STORE_ADDRESS_SIZE];
  int result = spile_repair(uri, &settings, moved_to, sizeof(moved_to), &error);
  if (result != SPILE_OK)
    return store_failed(result, error.reason, error.message);

  bool moved = moved_to[0] != '\0';
  if (options->given & OPTION_JSON) {
    output("{\"repaired\":%s,", moved ? "true" : "false");
    if (moved)
      output_json_member("moved_to", moved_to, strlen(moved_to));
    else
      output("\"moved_to\":null");
    output("}\n");
  } else if (moved) {
    output("repaired: the damaged file is kept as ");
    output_escaped(moved_to, strlen(moved_to));
    output("; the store is empty\n");
  } else {
    output("sound: nothing to repair\n");
  }
  return EXIT_ALLOWED;
}
