/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_faults.h"

#include <string.h>

static const struct {
  sim_moment moment;
  int64_t most;
  const char *name;
} faults[SIM_FAULTS] = {[SIM_NO_FAULT] = {SIM_MOMENTS, 0, "none"},
#define SIM_FAULT_ROW(moment, name, most) [SIM_##name] = {SIM_MOMENT_##moment, most, #name},
                        SIM_FAULT_LIST(SIM_FAULT_ROW)
#undef SIM_FAULT_ROW
};

const char *sim_fault_name(sim_fault fault) {
  return faults[fault].name;
}

void sim_swarm_make(sim_swarm *swarm, sim_random *random) {
  memset(swarm, 0, sizeof(*swarm));
  /* One run in sixteen is quiet, so that what a healthy network does is met at full speed as well. */
  if (sim_once_in(random, 16))
    return;
  for (int i = SIM_NO_FAULT + 1; i < SIM_FAULTS; i++) {
    if (sim_once_in(random, 2))
      swarm->per_million[i] = faults[i].most >> sim_below(random, 6);
    swarm->of_moment[faults[i].moment] += swarm->per_million[i];
  }
}

void sim_swarm_end(sim_swarm *swarm) {
  memset(swarm->per_million, 0, sizeof(swarm->per_million));
  memset(swarm->of_moment, 0, sizeof(swarm->of_moment));
}

sim_fault sim_swarm_draw(sim_swarm *swarm, sim_random *random, sim_moment moment) {
  if (swarm->of_moment[moment] == 0)
    return SIM_NO_FAULT;
  int64_t drawn = sim_below(random, 1000000);
  if (drawn >= swarm->of_moment[moment])
    return SIM_NO_FAULT;
  int fault = SIM_NO_FAULT;
  while (drawn >= 0) {
    fault++;
    if (faults[fault].moment == moment)
      drawn -= swarm->per_million[fault];
  }
  swarm->happened[fault]++;
  return (sim_fault)fault;
}
