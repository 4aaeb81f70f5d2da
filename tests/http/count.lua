-- SPDX-License-Identifier: Apache-2.0
-- For wrk: POSTs, and how many answers there were of each status.
wrk.method = "POST"
local threads = {}
local names = { "s200", "s429", "s503", "other" }

function setup(thread)
  for _, name in ipairs(names) do thread:set(name, 0) end
  table.insert(threads, thread)
end

function response(status)
  if status == 200 then s200 = s200 + 1
  elseif status == 429 then s429 = s429 + 1
  elseif status == 503 then s503 = s503 + 1
  else other = other + 1 end
end

function done(summary)
  for _, name in ipairs(names) do
    local sum = 0
    for _, thread in ipairs(threads) do sum = sum + thread:get(name) end
    io.write(name, "=", sum, "\n")
  end
  local e = summary.errors
  io.write("errors=", e.connect + e.read + e.write + e.timeout, "\n")
end
