-- SPDX-License-Identifier: Apache-2.0
--
-- One take, decided on the server in one atomic step: the authority for every client that shares its buckets.
--
-- The decision is that of src/core, one algorithm a file, with its names and in its order; a change here is a change
-- there. Most limits are buckets (bucket.c), and what they need stands first. A bucket is a string whose expiry is the
-- instant at which the bucket is full again and one second more, for clocks that disagree. The value is the shape it was
-- written under, 'capacity:N:P:' or 'capacity:N:P:debt:' where debt is not 0, followed by the remainder of that instant
-- in 1/N ms where it is not 0. So a bucket that is full needs no entry, reading one needs no TIME (now = PEXPIRETIME -
-- PTTL), and a denial is only a read. Another algorithm is another key and a letter before its shape and value: l, a
-- leaky bucket, is the same in all else.
--
-- A window has the shape 'fcapacity:window', and the value is its shape, '=' and its state:
--   f  fixed_window     'count'
--   w  sliding_window   'count:before'
--   e  sliding_log      two bytes and eight for each entry, oldest first: its instant in six bytes and, in two, how
--                       many tokens were taken up to and with it; the first two are how many were taken before. These
--                       counts go round at 2^16, so what was taken between two entries is their difference, and nothing
--                       needs to be added up.
--
-- KEYS: one a bucket, none twice.
-- ARGV: four a bucket: its shape as text, the cost c*P, the room (capacity - c)*P, and N; of a window the cost c, the
-- room capacity - c, and '=' with the cost that is asked about, which a peek does not take. Then, where the time is
-- given, that time plus 10^13 ms, so that the server never expires such a bucket by itself.
-- Instead of a take, the fourth argument of every bucket may be a word, and all count whole tokens then:
--   charge   the cost, and 0
--   refund   the cost, and 0
--   upto     the least and the most, the same for every bucket
-- Reply: the reading before the call under the shape that was asked for, which is the debt in 1/P token, or an array of
-- a window's numbers (of a log's second one sliding_log.c tells what it is in a refund); an array of readings for
-- several buckets. The caller's core makes outcome and waits of it. An error reply means that nothing was charged: all
-- charges of a call are made by one and the same command, and a server that refuses it (ACL, memory, a replica)
-- refuses the first.
--
-- Lua numbers are doubles: every integer here stays below 2^53, and becomes text only through '%d'.

local call = redis.call
local format = string.format
local floor = math.floor
local match = string.match
local sub = string.sub
local EXACT_MAX = 9007199254740991
local PERIOD_MAX_MS = 315360000000
local TOLERANCE_MS = 1000
local values

-- ---- What is usual: buckets, and windows of counts, of unchanged shape ----
--
-- It is read and charged without the functions of each algorithm: making them costs more than what they do. Whatever is
-- unusual is left to the long way, where they stand.

-- One, on the server's own clock.
if not KEYS[2] and not ARGV[5] then
  local key, shape = KEYS[1], ARGV[1]
  local value = call('GET', key)
  local rem
  if value == shape then
    rem = 0
  elseif value and sub(value, 1, #shape) == shape then
    rem = tonumber(match(value, '^[1-9]%d*$', #shape + 1))
  end
  -- Of a window this is no number, and of what is no take it is a word.
  local N = tonumber(ARGV[4])
  local count, before
  if value and not N and sub(ARGV[4] or '', 1, 1) == '=' and sub(value, 1, #shape) == shape then
    count, before = match(value, '^=(%d+):?(%d*)$', #shape + 1)
  end
  if rem and N or count then
    local left_ms = call('PTTL', key)
    local ahead_ms = left_ms - TOLERANCE_MS
    local cost, room = tonumber(ARGV[2]), tonumber(ARGV[3])
    if count then
      local kind, W = match(shape, '^(%a)%d+:(%d+)$')
      W, count = tonumber(W), tonumber(count)
      -- The window must be the one of the value, begun and not over, so that expiry and what was before stay.
      if kind == 'f' and before == '' and ahead_ms > 0 and ahead_ms <= W and count > 0 and count <= cost + room then
        if cost > 0 and count <= room then
          call('SET', key, shape .. '=' .. format('%d', count + cost), 'KEEPTTL')
        end
        return {count, ahead_ms}
      end
      local rest_ms = kind == 'w' and before ~= '' and ahead_ms - W or 0
      if rest_ms > 0 and rest_ms <= W and count > 0 and count <= cost + room then
        before = tonumber(before)
        if cost > 0 and before * rest_ms + count * W <= room * W then
          call('SET', key, shape .. '=' .. format('%d:%d', count + cost, before), 'KEEPTTL')
        end
        return {before, count, rest_ms}
      end
    else
      local debt = 0
      if ahead_ms >= 0 then
        debt = ahead_ms * N + rem
      end
      -- Up to an empty bucket nothing can have to be cut.
      if left_ms >= 0 and rem < N and debt <= cost + room then
        if debt > room or cost == 0 then
          return debt
        end
        local after = debt + cost
        local rem_after = after % N
        local expires = format('%d', call('PEXPIRETIME', key) - ahead_ms + floor(after / N))
        if rem_after == rem then
          -- The value stays, so this needs no memory and works on a server that has none left.
          call('PEXPIREAT', key, expires)
        elseif rem_after == 0 then
          call('SET', key, shape, 'PXAT', expires)
        else
          call('SET', key, shape .. format('%d', rem_after), 'PXAT', expires)
        end
        return debt
      end
    end
  end
  values = {value}
end

local n = #KEYS
local given_ms = ARGV[4 * n + 1]
if n == 0 or #ARGV < 4 * n or #ARGV > 4 * n + 1 then
  return redis.error_reply('ERR spile: there are four arguments a key and at most a time behind them')
end
if given_ms then
  given_ms = match(given_ms, '^%d+$') and tonumber(given_ms) or 0
  if given_ms < 1e13 or given_ms > 2e13 then
    return redis.error_reply('ERR spile: a given time is from 10^13 to 2*10^13')
  end
end

-- The word of a charge, a refund or a take up to; nil: a take.
local verb = match(ARGV[4], '^%l+$')
-- The one instant of this call, given or by the server's clock as the first key tells it; and where windows begin.
local now_ms = given_ms
local epoch_ms = given_ms and 1e13 or 0
local readings = {} -- nil or false: left to the long way
local ends_ms = {} -- the expiry of what is left to it, where it is known
local usual = not values and not verb
local fits = true
local moves = true -- every charge leaves its value and moves only the expiry

-- The value of a window of counts after a charge that leaves it the same window.
local function window_charged(shape, reading, cost)
  if reading[3] then
    return shape .. '=' .. format('%d:%d', reading[2] + cost, reading[1])
  end
  return shape .. '=' .. format('%d', reading[1] + cost)
end

-- Several, and where the time is given. All that a charge needs is read before the first write, here and below, so that
-- nothing can fail between two of them.
if not values then
  values = n == 1 and {call('GET', KEYS[1])} or call('MGET', unpack(KEYS))
end
if usual then
  for i = 1, n do
    local at = 4 * i
    local value, shape, N = values[i], ARGV[at - 3], tonumber(ARGV[at])
    local reading, expires_ms
    if value == shape or value and sub(value, 1, #shape) == shape then
      expires_ms = call('PEXPIRETIME', KEYS[i])
    end
    if expires_ms and expires_ms >= 0 then
      now_ms = now_ms or expires_ms - call('PTTL', KEYS[i])
      local full_at_ms = expires_ms - TOLERANCE_MS
      local ahead_ms = full_at_ms - now_ms
      local cost, room = tonumber(ARGV[at - 2]), tonumber(ARGV[at - 1])
      if N then
        local rem = value == shape and 0 or tonumber(match(value, '^[1-9]%d*$', #shape + 1))
        local debt = 0
        if rem and ahead_ms >= 0 then
          debt = ahead_ms * N + rem
        end
        if rem and rem < N and debt <= cost + room then
          reading = debt
          fits = fits and debt <= room
          moves = moves and (cost == 0 or (debt + cost) % N == rem)
        end
      elseif sub(ARGV[at], 1, 1) == '=' then
        local kind, W = match(shape, '^([fw])%d+:(%d+)$')
        local count, before = match(value, '^=(%d+):?(%d*)$', #shape + 1)
        W, count = tonumber(W), tonumber(count)
        if W and count and count > 0 and count <= cost + room and (full_at_ms - epoch_ms) % W == 0 then
          local rest_ms = ahead_ms - W
          if kind == 'f' and before == '' and ahead_ms > 0 and rest_ms <= 0 then
            reading = {count, ahead_ms}
            fits = fits and count <= room
          elseif kind == 'w' and before ~= '' and rest_ms > 0 and rest_ms <= W then
            before = tonumber(before)
            reading = {before, count, rest_ms}
            fits = fits and before * rest_ms + count * W <= room * W
          end
          moves = moves and cost == 0
        end
      end
    end
    if not reading then
      usual = false
      ends_ms[i] = expires_ms
    end
    readings[i] = reading or false
  end
end
if usual then
  for i = 1, fits and n or 0 do
    local at = 4 * i
    local cost = tonumber(ARGV[at - 2])
    if cost > 0 then
      local key, shape, N, reading = KEYS[i], ARGV[at - 3], tonumber(ARGV[at]), readings[i]
      if N then
        local after = reading + cost
        local rem = after % N
        local expires = format('%d', now_ms + TOLERANCE_MS + floor(after / N))
        if moves then
          call('PEXPIREAT', key, expires)
        else
          call('SET', key, rem > 0 and shape .. format('%d', rem) or shape, 'PXAT', expires)
        end
      else
        call('SET', key, window_charged(shape, reading, cost), 'KEEPTTL')
      end
    end
  end
  return n == 1 and readings[1] or readings
end

-- ---- The long way ----

-- The numbers of a shape, or nil for a text that is none or leaves the bounds of spile__shape_make in src/core/limit.c.
local function shape_parse(text)
  local capacity, N, P = match(text, '^l?([1-9]%d*):([1-9]%d*):([1-9]%d*):$')
  local debt = 0
  if not capacity then
    capacity, N, P, debt = match(text, '^l?([1-9]%d*):([1-9]%d*):([1-9]%d*):([1-9]%d*):$')
    if not capacity then
      return nil
    end
  end
  capacity, N, P, debt = tonumber(capacity), tonumber(N), tonumber(P), tonumber(debt)
  local burst = capacity + debt
  -- Compared before multiplied; a number that is no longer exact is far outside.
  if P > PERIOD_MAX_MS or burst > floor((EXACT_MAX - (TOLERANCE_MS + 1) * N) / P) or
      math.ceil(burst * P / N) > PERIOD_MAX_MS then
    return nil
  end
  local a, b = N, P
  while b ~= 0 do
    a, b = b, a % b
  end
  if a ~= 1 then
    return nil
  end
  return capacity, N, P, debt
end

-- What is wrong with the four arguments of a bucket, or nil. Asked before a key is written whose shape is not yet there.
local function bucket_check(shape, cost, room, N)
  local capacity, shape_N, P = shape_parse(shape)
  if not capacity then
    return 'the shape is not capacity:N:P: or capacity:N:P:debt: within the bounds'
  end
  if not match(cost, '^%d+$') or not match(room, '^%d+$') or not match(N, '^%d+$') then
    return 'cost, room and N are whole numbers'
  end
  if tonumber(N) ~= shape_N then
    return 'N is not that of the shape'
  end
  if tonumber(cost) % P ~= 0 or tonumber(cost) + tonumber(room) ~= capacity * P then
    return 'cost and room are not whole tokens that add up to the capacity'
  end
  return nil
end

-- What is wrong with the last three arguments of a bucket that has a word; or nil, the cost to read for and, in tokens,
-- the room that there must be.
local function verb_check(capacity, cost, most, word)
  if word ~= verb or verb ~= 'charge' and verb ~= 'refund' and verb ~= 'upto' then
    return 'a word is charge, refund or upto, the same for every bucket'
  end
  if not match(cost, '^%d+$') or not match(most, '^%d+$') or tonumber(cost) > EXACT_MAX then
    return 'cost and most are whole numbers'
  end
  cost, most = tonumber(cost), tonumber(most)
  if verb == 'upto' then
    if cost > most or most > capacity then
      return 'the least, the most and the capacity are not in order'
    end
    return nil, cost, capacity - cost
  end
  if most ~= 0 then
    return 'a charge and a refund have no most'
  end
  return nil, verb == 'refund' and -cost or 0, EXACT_MAX
end

-- floor(fraction * P / old_P): rescale of bucket.c, with the period in three digits of 13 bits.
local function rescale(fraction, P, old_P)
  local quotient, rest = 0, 0
  for shift = 2, 0, -1 do
    local digit = floor(P / 8192 ^ shift) % 8192
    local x = rest * 8192 + fraction * digit
    quotient = quotient * 8192 + floor(x / old_P)
    rest = x % old_P
  end
  return quotient
end

-- Reads a bucket under `shape`: its debt, and whether it has to be written though nothing is charged (another shape, a
-- clock cut). nil and an error text when the value is not ours.
local function bucket_read(shape, value, left_ms)
  local mark = match(value, '^%a?')
  if mark ~= match(shape, '^%a?') then
    if mark ~= '' then
      return nil, 'VERSION the bucket was written in a later format'
    end
    return nil, 'FOREIGN the value is not a bucket of this algorithm'
  end
  local old_shape, rem = match(value, '^(%a?%d+:%d+:%d+:)(%d*)$')
  if not old_shape then
    old_shape, rem = match(value, '^(%a?%d+:%d+:%d+:%d+:)(%d*)$')
  end
  if not old_shape then
    return nil, 'FOREIGN the value is not a bucket'
  end
  local old_capacity, old_N, old_P, old_debt = shape_parse(old_shape)
  if not old_capacity or match(rem, '^0') then
    return nil, 'FOREIGN the value is not a bucket within the bounds'
  end
  rem = rem == '' and 0 or tonumber(rem)
  if rem >= old_N then
    return nil, 'FOREIGN the remainder is not below N'
  end

  local ahead_ms = left_ms - TOLERANCE_MS
  if ahead_ms < 0 then
    return 0, false
  end
  local debt, rewrite
  local deepest = (old_capacity + old_debt) * old_P
  if ahead_ms <= floor(deepest / old_N) + TOLERANCE_MS then
    debt = ahead_ms * old_N + rem
  end
  if not debt or debt > deepest + TOLERANCE_MS * old_N then
    debt, rewrite = old_capacity * old_P, true
  end
  if debt == 0 or old_shape == shape then
    return debt, rewrite
  end

  local capacity, _, P, debt_max = shape_parse(shape)
  local level = old_capacity * old_P - debt
  local tokens = floor(level / old_P)
  local fraction = level - tokens * old_P
  if tokens >= capacity then
    return 0, true
  end
  if tokens < -debt_max then
    return (capacity + debt_max) * P, true
  end
  return capacity * P - (tokens * P + rescale(fraction, P, old_P)), true
end

-- ---- Windows ----
--
-- Each kind of window is a function that makes a table of functions:
--   beyond   whether a shape passes the bound that is the kind's own; absent where it has none
--   parse    what a value says, or nil when it is none
--   read     the reading, a table of numbers, and whether it has to be written though nothing is charged
--   fits     whether a cost fits, by the room that it leaves
--   room     the most that fits, in whole tokens
--   charge   the reading after a charge of what fits
--   refund   the reading after what it counts, a number above 0, is given back
--   counts   how much can be given back
--   state    the value of a reading, and the instant from which it equals none; nil for a reading of nothing
--
-- All of it stands in one function, so that calls about buckets do not pay for making it.
local function windows_make()
  -- A window that begins more than the tolerance ahead moves to now's. Returns its start, and whether it was moved.
  local function window_cut(start_ms, W, now_ms)
    if start_ms <= now_ms + TOLERANCE_MS then
      return start_ms, false
    end
    return now_ms - now_ms % W, true
  end

  -- The numbers of a window's shape, or nil for a text that is none or leaves the bounds that all windows share.
  local function window_parse(text)
    local capacity, W = match(text, '^%a([1-9]%d*):([1-9]%d*)$')
    capacity, W = tonumber(capacity), tonumber(W)
    if not capacity or capacity > EXACT_MAX or W > PERIOD_MAX_MS then
      return nil
    end
    return capacity, W
  end

  -- src/core/fixed_window.c
  local function fixed_window()
    return {
      parse = function(state, capacity, W, full_at_ms)
        local count = tonumber(match(state, '^[1-9]%d*$'))
        local start_ms = full_at_ms - W
        if not count or count > capacity or start_ms < 0 or start_ms % W ~= 0 then
          return nil
        end
        return {start_ms = start_ms, count = count}
      end,
      read = function(capacity, W, old, now_ms, same)
        local nothing = {0, now_ms - now_ms % W + W - now_ms}
        if not old then
          return nothing, false
        end
        local start_ms, rewrite = window_cut(old.start_ms, old.W, now_ms)
        local count = old.count
        local decided_ms = math.max(now_ms, start_ms)
        if decided_ms >= start_ms + old.W then
          return nothing, false
        end
        if not same then
          start_ms = decided_ms - decided_ms % W
          count = math.min(count, capacity)
          rewrite = true
        end
        return {count, start_ms + W - now_ms}, rewrite
      end,
      fits = function(reading, room)
        return reading[1] <= room
      end,
      room = function(reading, capacity)
        return capacity - reading[1]
      end,
      charge = function(reading, cost)
        return {reading[1] + cost, reading[2]}
      end,
      counts = function(reading)
        return reading[1]
      end,
      refund = function(reading, tokens)
        return {reading[1] - tokens, reading[2]}
      end,
      state = function(reading, W, now_ms)
        if reading[1] > 0 then
          return format('%d', reading[1]), now_ms + reading[2]
        end
      end,
    }
  end

  -- src/core/sliding_window.c
  local function sliding_window()
    return {
      beyond = function(capacity, W)
        return capacity > floor(EXACT_MAX / 3 / W)
      end,
      parse = function(state, capacity, W, full_at_ms)
        local count, before = match(state, '^(%d+):(%d+)$')
        count, before = tonumber(count), tonumber(before)
        if not count or count > capacity or before > capacity or count + before == 0 then
          return nil
        end
        local start_ms = full_at_ms - (count > 0 and 2 or 1) * W
        if start_ms < 0 or start_ms % W ~= 0 then
          return nil
        end
        return {start_ms = start_ms, count = count, before = before}
      end,
      read = function(capacity, W, old, now_ms, same)
        local nothing = {0, 0, now_ms - now_ms % W + W - now_ms}
        if not old then
          return nothing, false
        end
        local start_ms, rewrite = window_cut(old.start_ms, old.W, now_ms)
        local count, before = old.count, old.before
        local decided_ms = math.max(now_ms, start_ms)
        if decided_ms >= start_ms + old.W then
          start_ms = start_ms + old.W
          count, before = 0, count
        end
        if decided_ms >= start_ms + old.W or (before == 0 and count == 0) then
          return nothing, false
        end
        if not same then
          start_ms = decided_ms - decided_ms % W
          count = math.min(count, capacity)
          before = math.min(before, capacity)
          rewrite = true
        end
        return {before, count, start_ms + W - now_ms}, rewrite
      end,
      fits = function(reading, room, W)
        return reading[1] * math.min(reading[3], W) + reading[2] * W <= room * W
      end,
      room = function(reading, capacity, W)
        local left = capacity * W - (reading[1] * math.min(reading[3], W) + reading[2] * W)
        return math.max(0, floor(left / W))
      end,
      charge = function(reading, cost)
        return {reading[1], reading[2] + cost, reading[3]}
      end,
      counts = function(reading)
        return reading[2]
      end,
      refund = function(reading, tokens)
        return {reading[1], reading[2] - tokens, reading[3]}
      end,
      state = function(reading, W, now_ms)
        if reading[2] > 0 then
          return format('%d:%d', reading[2], reading[1]), now_ms + reading[3] + W
        elseif reading[1] > 0 then
          return format('0:%d', reading[1]), now_ms + reading[3]
        end
      end,
    }
  end

  -- src/core/sliding_log.c
  local function sliding_log()
    local to_bytes, from_bytes = struct.pack, struct.unpack

    -- The instant of entry i of a log's state and the count up to it.
    local function log_entry(state, i)
      local at_ms, taken = from_bytes('>I6I2', state, 8 * i - 5)
      return at_ms, taken
    end

    -- The first of the entries i to n for which it holds, as it does for all that follow; n + 1 where it does for none.
    local function log_search(i, n, holds)
      local beyond = n + 1
      while i < beyond do
        local middle = floor((i + beyond) / 2)
        if holds(middle) then
          beyond = middle
        else
          i = middle + 1
        end
      end
      return i
    end

    -- What counts of a log: the state it stands in, its first entry and how many that has, and the count before it.
    local function log_view(state, first, n)
      local taken = from_bytes('>I2', state, 1)
      if first > 1 then
        taken = select(2, log_entry(state, first - 1))
      end
      return {state = state, first = first, n = n, taken = taken}
    end

    -- The state of two lists, of instants and of tokens.
    local function log_make(ats_ms, tokens)
      local pieces, taken = {to_bytes('>I2', 0)}, 0
      for i = 1, #ats_ms do
        taken = taken + tokens[i]
        pieces[i + 1] = to_bytes('>I6I2', ats_ms[i], taken)
      end
      return table.concat(pieces)
    end

    -- Leaves out the entries that do not count in a window of this length.
    local function log_expire(view, W, now_ms)
      local first = log_search(view.first, view.n, function(i)
        return log_entry(view.state, i) > now_ms - W
      end)
      return log_view(view.state, first, view.n)
    end

    -- Entries more than the tolerance ahead become one of now, before those that are ahead within the tolerance.
    local function log_cut(view, now_ms)
      local ats_ms, tokens, ahead_ms, ahead = {}, {}, {}, {}
      local cut, before = 0, view.taken
      for i = view.first, view.n do
        local at_ms, taken = log_entry(view.state, i)
        local own = (taken - before) % 65536
        before = taken
        if at_ms <= now_ms then
          ats_ms[#ats_ms + 1], tokens[#tokens + 1] = at_ms, own
        elseif at_ms <= now_ms + TOLERANCE_MS then
          ahead_ms[#ahead_ms + 1], ahead[#ahead + 1] = at_ms, own
        else
          cut = cut + own
        end
      end
      if ats_ms[#ats_ms] == now_ms then
        tokens[#tokens] = tokens[#tokens] + cut
      else
        ats_ms[#ats_ms + 1], tokens[#tokens + 1] = now_ms, cut
      end
      for i = 1, #ahead do
        ats_ms[#ats_ms + 1], tokens[#tokens + 1] = ahead_ms[i], ahead[i]
      end
      return log_view(log_make(ats_ms, tokens), 1, #ats_ms)
    end

    -- How many tokens count.
    local function log_used(view)
      if view.first > view.n then
        return 0
      end
      return (select(2, log_entry(view.state, view.n)) - view.taken) % 65536
    end

    -- The first entry up to and with which so many tokens were taken.
    local function log_entry_of(view, tokens)
      return log_search(view.first, view.n, function(i)
        return (select(2, log_entry(view.state, i)) - view.taken) % 65536 >= tokens
      end)
    end

    -- Forgets the oldest tokens above the capacity.
    local function log_clamp(view, capacity)
      local excess = log_used(view) - capacity
      if excess <= 0 then
        return view
      end
      local first = log_entry_of(view, excess + 1)
      return {state = view.state, first = first, n = view.n, taken = (view.taken + excess) % 65536}
    end

    return {
      beyond = function(capacity)
        return capacity > 1000
      end,
      parse = function(state, capacity, W, full_at_ms)
        local n = (#state - 2) / 8
        if n < 1 or n > capacity or n % 1 ~= 0 then
          return nil
        end
        local view = log_view(state, 1, n)
        local used = log_used(view)
        if used < n or used > capacity or log_entry(state, n) ~= full_at_ms - W then
          return nil
        end
        return {view = view}
      end,
      read = function(capacity, W, old, now_ms, same, wanted)
        local nothing = {0, 0, 0, 0}
        if not old then
          return nothing, false
        end
        local view, rewrite = old.view, false
        if log_entry(view.state, view.n) > now_ms + TOLERANCE_MS then
          view, rewrite = log_cut(view, now_ms), true
        end
        view = log_expire(view, old.W, now_ms)
        if view.first > view.n then
          return nothing, false
        end
        if not same then
          view, rewrite = log_clamp(log_expire(view, W, now_ms), capacity), true
          if view.first > view.n then
            return nothing, true
          end
        end
        local used = log_used(view)
        local wait_ms = 0
        if wanted < 0 then
          if used + wanted > 0 then
            wait_ms = log_entry(view.state, log_entry_of(view, used + wanted)) + W - now_ms
          end
        elseif used > capacity - wanted then
          wait_ms = log_entry(view.state, log_entry_of(view, used - (capacity - wanted))) + W - now_ms
        end
        local oldest_ms = log_entry(view.state, view.first) + W - now_ms
        return {used, wait_ms, log_entry(view.state, view.n) + W - now_ms, oldest_ms, view = view}, rewrite
      end,
      fits = function(reading, room)
        return reading[1] <= room
      end,
      room = function(reading, capacity)
        return capacity - reading[1]
      end,
      charge = function(reading, cost)
        return {reading[1] + cost, 0, reading[3], view = reading.view, charged = cost}
      end,
      counts = function(reading)
        return reading[1]
      end,
      refund = function(reading, tokens)
        return {reading[1] - tokens, 0, reading[2], view = reading.view, refunded = tokens}
      end,
      state = function(reading, W, now_ms)
        local view = reading.view
        if reading.refunded then
          if reading[1] == 0 then
            return nil
          end
          local last = log_entry_of(view, reading[1])
          local at_ms = log_entry(view.state, last)
          return to_bytes('>I2', view.taken) .. sub(view.state, 8 * view.first - 5, 8 * last - 6) ..
              to_bytes('>I6I2', at_ms, (view.taken + reading[1]) % 65536), at_ms + W
        end
        local n, first, newest_ms, taken = 0, 1, -1, 0
        local kept = to_bytes('>I2', 0)
        if view then
          n, first = view.n, view.first
          newest_ms, taken = log_entry(view.state, n)
          kept = to_bytes('>I2', view.taken) .. sub(view.state, 8 * first - 5)
        end
        if reading.charged then
          taken = (taken + reading.charged) % 65536
          if now_ms > newest_ms then
            newest_ms = now_ms
          else
            kept = sub(kept, 1, -9)
          end
          kept = kept .. to_bytes('>I6I2', newest_ms, taken)
        elseif not view then
          return nil
        end
        return kept, newest_ms + W
      end,
    }
  end

  local makers = {f = fixed_window, w = sliding_window, e = sliding_log}
  local kinds = {}

  -- The kind that a shape begins with, or nil.
  local function window_of(shape)
    local letter = sub(shape, 1, 1)
    if not kinds[letter] and makers[letter] then
      kinds[letter] = makers[letter]()
    end
    return kinds[letter]
  end

  -- What is wrong with the four arguments of a window, or nil, its capacity, its length, the cost asked about, and the
  -- room that there must be.
  local function window_check(window, shape, cost, room, wanted)
    local capacity, W = window_parse(shape)
    if not capacity or window.beyond and window.beyond(capacity, W) then
      return 'the shape is not capacity:window behind its letter, within the bounds'
    end
    if verb then
      local fault
      fault, wanted, room = verb_check(capacity, cost, room, wanted)
      return fault, capacity, W, wanted, room
    end
    wanted = tonumber(match(wanted, '^=(%d+)$'))
    if not match(cost, '^%d+$') or not match(room, '^%d+$') or not wanted then
      return 'cost and room are whole numbers, and the cost asked about is = and one'
    end
    cost, room = tonumber(cost), tonumber(room)
    if cost + room ~= capacity or wanted > capacity or cost > 0 and cost ~= wanted then
      return 'cost and room do not add up to the capacity'
    end
    return nil, capacity, W, wanted, room
  end

  -- What a value says, with the length of its window as W; nil and an error text when the value is not ours.
  local function window_parse_value(window, shape, capacity, W, value, full_at_ms)
    local mark = match(value, '^%a?')
    if mark ~= sub(shape, 1, 1) then
      return nil, mark ~= '' and 'VERSION the bucket was written in a later format' or
          'FOREIGN the value is not a bucket of this algorithm'
    end
    local old_shape, state = match(value, '^(%a%d+:%d+)=(.*)$')
    local old
    if old_shape and old_shape ~= shape then
      capacity, W = window_parse(old_shape)
    end
    if old_shape and capacity and not (window.beyond and window.beyond(capacity, W)) then
      old = window.parse(state, capacity, W, full_at_ms)
    end
    if not old then
      return nil, 'FOREIGN the value is not a bucket within the bounds'
    end
    old.W = W
    old.shape = old_shape
    return old
  end

  return {of = window_of, check = window_check, value = window_parse_value}
end

-- The reply where bucket i cannot be read: of several it says which one.
local function unreadable(i, why)
  if n > 1 then
    why = string.gsub(why, ' ', format(' bucket %d: ', i), 1)
  end
  return redis.error_reply(why)
end

local windows
local rewrites = {}
local takes = {} -- what is needed to write a window
local shapes = {} -- the numbers of a bucket's shape, where there is a verb
for i = 1, n do
  if not readings[i] then
    local at = 4 * i
    local shape, cost, room, N = ARGV[at - 3], ARGV[at - 2], ARGV[at - 1], ARGV[at]
    local value, left_ms = values[i], nil
    -- MGET reads a key of another type as absent, GET does not.
    if value or n > 1 then
      local expires_ms = ends_ms[i] or call('PEXPIRETIME', KEYS[i])
      if not value and expires_ms ~= -2 then
        return unreadable(i, 'FOREIGN the key does not hold a string')
      elseif value and (expires_ms < 0 or expires_ms > EXACT_MAX) then
        return unreadable(i, 'FOREIGN the key does not expire as a bucket does')
      elseif value then
        now_ms = now_ms or expires_ms - call('PTTL', KEYS[i])
        left_ms = expires_ms - now_ms
      end
    end
    local reading, rewrite = 0, false
    local window, fault
    if match(shape, '^[efw]') then
      windows = windows or windows_make()
      window = windows.of(shape)
    end
    if window then
      local capacity, W, wanted, left
      fault, capacity, W, wanted, left = windows.check(window, shape, cost, room, N)
      if fault then
        return redis.error_reply('ERR spile: ' .. fault)
      end
      if not now_ms then
        local time = call('TIME')
        now_ms = time[1] * 1000 + floor(time[2] / 1000)
      end
      local since_ms = now_ms - epoch_ms
      local old
      if value then
        old, fault = windows.value(window, shape, capacity, W, value, since_ms + left_ms - TOLERANCE_MS)
        if not old then
          return unreadable(i, fault)
        end
      end
      reading, rewrite = window.read(capacity, W, old, since_ms, old and old.shape == shape, wanted)
      takes[i] = {window = window, capacity = capacity, W = W, now_ms = since_ms}
      fits = fits and window.fits(reading, left, W)
    else
      if verb then
        local capacity, shape_N, P, debt_max = shape_parse(shape)
        if not capacity then
          fault = 'the shape is not capacity:N:P: or capacity:N:P:debt: within the bounds'
        else
          local wanted
          fault, wanted, room = verb_check(capacity, cost, room, N)
          room = room and room * P
          shapes[i] = {capacity = capacity, N = shape_N, P = P, debt = debt_max}
        end
      else
        fault = bucket_check(shape, cost, room, N)
      end
      if fault then
        return redis.error_reply('ERR spile: ' .. fault)
      end
      if value then
        reading, rewrite = bucket_read(shape, value, left_ms)
        if not reading then
          return unreadable(i, rewrite)
        end
      end
      fits = fits and reading <= tonumber(room)
    end
    readings[i], rewrites[i] = reading, rewrite
    moves = moves and cost == '0'
  end
end

-- Writes bucket i with a debt above 0. One command sets value and expiry, so no bucket is ever without an end; where
-- `move` allows it and the value stays, PEXPIREAT does, which needs no memory.
local function bucket_write(i, debt, move)
  local key, shape, N = KEYS[i], ARGV[4 * i - 3], shapes[i] and shapes[i].N or tonumber(ARGV[4 * i])
  local full_ms = floor(debt / N)
  local rem = debt % N
  local value = rem > 0 and shape .. format('%d', rem) or shape
  if not now_ms then
    return call('SET', key, value, 'PX', format('%d', full_ms + TOLERANCE_MS))
  end
  local expires = format('%d', now_ms + full_ms + TOLERANCE_MS)
  if move and value == values[i] then
    return call('PEXPIREAT', key, expires)
  end
  return call('SET', key, value, 'PXAT', expires)
end

-- Writes the state of a window's reading, or nothing and returns nil where it equals none.
local function window_write(i, reading)
  local take = takes[i]
  local state, full_at_ms = take.window.state(reading, take.W, take.now_ms)
  if not state then
    return nil
  end
  local expires = format('%d', full_at_ms + epoch_ms + TOLERANCE_MS)
  return call('SET', KEYS[i], ARGV[4 * i - 3] .. '=' .. state, 'PXAT', expires)
end

-- Writes what is left of bucket i, or removes it where that is nothing.
local function left_write(i, reading, move)
  local written
  if takes[i] then
    written = window_write(i, reading)
  elseif reading > 0 then
    written = bucket_write(i, reading, move)
  end
  if not written then
    call('DEL', KEYS[i])
  end
end

-- The most, in whole tokens, that every bucket has of what is asked for.
local function granted()
  local most = tonumber(ARGV[3])
  for i = 1, n do
    local take, shape = takes[i], shapes[i]
    if take then
      most = math.min(most, take.window.room(readings[i], take.capacity, take.W))
    else
      most = math.min(most, math.max(0, floor((shape.capacity * shape.P - readings[i]) / shape.P)))
    end
  end
  return most
end

-- The reading of bucket i after a charge or a refund, or after a take up to that is granted so much; nil where it stays.
local function settle(i, cost)
  local take, shape, debt = takes[i], shapes[i], readings[i]
  if take then
    local tokens = math.min(cost, verb == 'refund' and take.window.counts(debt) or
        take.window.room(debt, take.capacity, take.W))
    if tokens == 0 then
      return nil
    end
    return verb == 'refund' and take.window.refund(debt, tokens) or take.window.charge(debt, tokens)
  end
  local after
  if verb == 'refund' then
    after = cost > floor(debt / shape.P) and 0 or debt - cost * shape.P
  else
    local deepest = (shape.capacity + shape.debt) * shape.P
    local tokens = math.max(0, floor((deepest - debt) / shape.P))
    after = cost <= tokens and debt + cost * shape.P or math.max(debt, deepest)
  end
  if after ~= debt then
    return after
  end
end

local up_to = verb == 'upto' and fits and granted() or nil
for i = 1, n do
  local cost = tonumber(ARGV[4 * i - 2])
  local after
  if verb == 'upto' then
    cost = tonumber(ARGV[4 * i - 1])
  end
  if verb and fits and cost > 0 then
    after = settle(i, up_to or cost)
  end
  if cost > 0 then
    if after then
      left_write(i, after, n == 1)
    elseif fits and not verb and takes[i] then
      window_write(i, takes[i].window.charge(readings[i], cost))
    elseif fits and not verb and tonumber(ARGV[4 * i]) then
      bucket_write(i, readings[i] + cost, moves)
    elseif fits and not verb then
      call('SET', KEYS[i], window_charged(ARGV[4 * i - 3], readings[i], cost), 'KEEPTTL')
    elseif rewrites[i] then
      -- Where that is refused (no memory, a replica, a missing right) the denial stands, and the next take tries again.
      pcall(left_write, i, readings[i], true)
    end
  end
end

if n == 1 then
  return readings[1]
end
return readings
