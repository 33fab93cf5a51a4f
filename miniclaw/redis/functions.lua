#!lua name=miniclaw_VERSION
-- What has to happen together. KEYS[1] is the prefix of all keys, which share one hash tag and so one slot.
-- Every function does the same when it runs twice; each write to a session checks the fencing number of its lease.
-- The keys are described in docs/scale.md.

local US = '\31'

local function fields(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end

-- What a full Redis refuses, since it takes in something new. What is under way is brought to its end there, and
-- what is deleted goes.
local GROWS = {accept = 1, acquire = 1, append = 1, ask = 1, begin = 1, enter = 1, identify = 1, login = 1, notice = 1,
  open_stream = 1, save = 1, save_timer = 1, started = 1}

local function register(name, body)
  redis.register_function{function_name = name .. '_VERSION', flags = GROWS[name] and {} or {'allow-oom'},
    callback = function(keys, args) return body(keys[1], args) end}
end

-- The number of whoever may write the session; an older one is refused. '' is a writer without a lease.
local function check_fence(p, sid, fence)
  if fence == '' then return end
  local current = tonumber(redis.call('HGET', p .. 's:' .. sid, 'fence') or '0')
  if current > tonumber(fence) then error({err = 'STALE'}) end
  if current < tonumber(fence) then redis.call('HSET', p .. 's:' .. sid, 'fence', fence) end
end

local function touch(p, sid, scope, now)
  redis.call('HSET', p .. 's:' .. sid, 'updated_at', now)
  redis.call('ZADD', p .. 'su:' .. scope, now, sid)
  redis.call('ZADD', p .. 'sessions', now, sid)
end

-- entries: {turn_id, step, body}; returns their positions, false for one that was there.
local function append(p, sid, entries)
  local positions = {}
  for i, e in ipairs(entries) do
    positions[i] = -1
    if redis.call('SADD', p .. 'steps:' .. sid, e[1] .. US .. e[2]) == 1 then
      positions[i] = redis.call('RPUSH', p .. 'log:' .. sid, cjson.encode(e)) - 1
    end
  end
  return positions
end

local function place(d) return d.channel .. US .. d.account .. US .. d.conversation end

-- Rows come up by turn, and those of no turn (n = 0) by time; then by part.
local function open_delivery(p, d)
  local rank = string.format('%020.6f %05d %s', d.created_at, d.part, d.key)
  redis.call('HSET', p .. 'dl:' .. d.key, 'rank', rank)
  redis.call('ZADD', p .. 'dc:' .. place(d), d.n, rank)
  redis.call('SADD', p .. 'dopen', place(d))
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A row that was sent is known by its key for some time; its turn and its user find it, so that it goes with them.
local function keep_sent(p, d, ms)
  redis.call('PEXPIRE', p .. 'dl:' .. d.key, ms)
  redis.call('ZREMRANGEBYSCORE', p .. 'ds:' .. d.user_id, 0, now_ms())
  redis.call('ZADD', p .. 'ds:' .. d.user_id, now_ms() + ms, d.key)
  redis.call('PEXPIRE', p .. 'ds:' .. d.user_id, ms)
end

local function insert_delivery(p, d)
  local key = p .. 'dl:' .. d.key
  local state = redis.call('HGET', key, 'state')
  if state and state ~= 'streaming' then return end
  if state then
    redis.call('HSET', key, 'text', d.text, 'state', 'pending')
  else
    local flat = {}
    for name, value in pairs(d) do flat[#flat + 1] = name; flat[#flat + 1] = value end
    redis.call('HSET', key, unpack(flat))
    redis.call('SADD', p .. 'dt:' .. d.turn_id, d.key)
    if d.state == 'sent' then return keep_sent(p, d, 7 * 24 * 3600 * 1000) end
    redis.call('ZADD', p .. 'du:' .. d.user_id, d.n, d.key)
    redis.call('ZADD', p .. 'du', d.n, d.key)
  end
  if d.state == 'pending' then
    open_delivery(p, fields(redis.call('HGETALL', key)))
  end
end

local function close_delivery(p, d)
  if d.rank then redis.call('ZREM', p .. 'dc:' .. place(d), d.rank) end
end

local function drop_delivery(p, key)
  local d = fields(redis.call('HGETALL', p .. 'dl:' .. key))
  if d.channel then
    close_delivery(p, d)
    redis.call('ZREM', p .. 'du:' .. d.user_id, key)
    redis.call('ZREM', p .. 'ds:' .. d.user_id, key)
    redis.call('SREM', p .. 'dt:' .. d.turn_id, key)
  end
  redis.call('ZREM', p .. 'du', key)
  redis.call('UNLINK', p .. 'dl:' .. key)
end

local function count_usage(p, key, used)
  for _, name in ipairs({'input_tokens', 'output_tokens', 'cached_tokens', 'calls', 'ms'}) do
    redis.call('HINCRBY', key, used.model .. US .. name, used[name] or 0)
  end
  if used.cost then
    redis.call('HINCRBYFLOAT', key, used.model .. US .. 'cost', used.cost)
  else
    redis.call('HSET', key, used.model .. US .. 'unknown', 1)
  end
end

local function make_ready(p, sid)
  if redis.call('HGET', p .. 's:' .. sid, 'ready') ~= '1' then
    redis.call('HSET', p .. 's:' .. sid, 'ready', 1)
    redis.call('XADD', p .. 'ready', '*', 's', sid)
  end
end

-- sessions ------------------------------------------------------------------------------------------------

local function save(p, sid, given, meta, fence)
  check_fence(p, sid, fence)
  local key = p .. 's:' .. sid
  local old = redis.call('HMGET', key, 'user_id', 'key')
  if old[1] and old[1] ~= given.user_id then redis.call('ZREM', p .. 'su:' .. old[1], sid) end
  if old[2] and old[2] ~= given.key then redis.call('HDEL', p .. 'keys', old[2]) end
  for _, name in ipairs({'key', 'thread'}) do
    if not given[name] then redis.call('HDEL', key, name) end
  end
  for name, value in pairs(given) do redis.call('HSET', key, name, value) end
  if given.key then redis.call('HSET', p .. 'keys', given.key, sid) end
  for name, value in pairs(meta) do
    if value == '' then redis.call('HDEL', key, 'm:' .. name) else redis.call('HSET', key, 'm:' .. name, value) end
  end
  touch(p, sid, given.user_id, given.updated_at)
end

-- sid, fence, fields, metadata ('' removes), 'whole' when metadata that is not named goes.
register('save', function(p, a)
  local meta = cjson.decode(a[4])
  if a[5] == 'whole' then
    for _, name in ipairs(redis.call('HKEYS', p .. 's:' .. a[1])) do
      if name:sub(1, 2) == 'm:' and not meta[name:sub(3)] then redis.call('HDEL', p .. 's:' .. a[1], name) end
    end
  end
  local given = cjson.decode(a[3])
  if a[5] ~= 'whole' then -- its place is left alone: a conversation may have gone on elsewhere
    local s = fields(redis.call('HGETALL', p .. 's:' .. a[1]))
    given.key, given.thread = s.key, s.thread
  end
  save(p, a[1], given, meta, a[2])
end)

-- sid, the fields of a new session, 'new' or '': whether the conversation of their key goes on there.
register('enter', function(p, a)
  local given = cjson.decode(a[2])
  if a[3] ~= 'new' then
    local s = fields(redis.call('HGETALL', p .. 's:' .. a[1]))
    if s.user_id ~= given.user_id then return 0 end
    given.channel, given.created_at = s.channel, s.created_at
  end
  local left = redis.call('HGET', p .. 'keys', given.key)
  if left then redis.call('HDEL', p .. 's:' .. left, 'key') end
  save(p, a[1], given, {}, '')
  return 1
end)

-- sid, fence, entries
register('append', function(p, a)
  if not redis.call('HGET', p .. 's:' .. a[1], 'user_id') then error({err = 'GONE ' .. a[1]}) end
  check_fence(p, a[1], a[2])
  return append(p, a[1], cjson.decode(a[3]))
end)

-- sid, start, stop: the session, the length of its log, and these entries.
register('load', function(p, a)
  local found = redis.call('HGETALL', p .. 's:' .. a[1])
  if not fields(found).user_id then return false end
  local log = p .. 'log:' .. a[1]
  local length = redis.call('LLEN', log)
  local stop = math.min(length, tonumber(a[3]) < 0 and length or tonumber(a[3]))
  local start = tonumber(a[2])
  if start < 0 then start = math.max(0, stop + start) end
  local entries = {}
  if start < stop then entries = redis.call('LRANGE', log, start, stop - 1) end
  return {found, start, entries}
end)

-- sid, unless, since when it must not have been used: the user or group that it belonged to.
register('delete', function(p, a)
  local sid = a[1]
  local key = p .. 's:' .. sid
  local s = fields(redis.call('HGETALL', key))
  if not s.user_id or (a[3] ~= '' and tonumber(s.updated_at) >= tonumber(a[3])) then return false end
  if a[2] ~= '' and redis.call('LLEN', p .. 'q:' .. sid) > 0 then return false end
  local open = {}
  for _, tid in ipairs(redis.call('LRANGE', p .. 'ts:' .. sid, 0, -1)) do
    for _, key in ipairs(redis.call('SMEMBERS', p .. 'dt:' .. tid)) do
      local d = fields(redis.call('HGETALL', p .. 'dl:' .. key))
      if d.state and d.state ~= 'sent' and d.state ~= 'dead' then open[#open + 1] = d end
    end
  end
  if a[2] == 'undelivered' and #open > 0 then return false end
  for _, d in ipairs(open) do close_delivery(p, d) end -- nobody is to send them any more
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', p .. 'du', 0, 0)) do -- notices that show the session
    local shows = redis.call('HGET', p .. 'dl:' .. key, 'turn_id')
    if shows and shows:find(sid, 1, true) then drop_delivery(p, key) end
  end
  if s.key then redis.call('HDEL', p .. 'keys', s.key) end
  redis.call('UNLINK', key, p .. 'log:' .. sid, p .. 'steps:' .. sid, p .. 'q:' .. sid, p .. 'ev:' .. sid)
  redis.call('ZREM', p .. 'su:' .. s.user_id, sid)
  redis.call('ZREM', p .. 'sessions', sid)
  for _, known in ipairs(redis.call('SMEMBERS', p .. 'dk:' .. sid)) do
    if redis.call('HEXISTS', p .. 'd:' .. known, 'result') == 1 then
      redis.call('HSET', p .. 'd:' .. known, 'result', '{}')
    end
  end
  redis.call('UNLINK', p .. 'dk:' .. sid)
  redis.call('HSET', p .. 'deleted', sid, s.user_id)
  return s.user_id
end)

-- sid, how many turns: removes that many; returns how many are left.
register('purge', function(p, a)
  local gone = redis.call('LPOP', p .. 'ts:' .. a[1], tonumber(a[2])) or {}
  for _, tid in ipairs(gone) do
    for _, d in ipairs(redis.call('SMEMBERS', p .. 'dt:' .. tid)) do drop_delivery(p, d) end
    for _, apr in pairs(redis.call('HVALS', p .. 'at:' .. tid)) do
      local q = redis.call('HMGET', p .. 'a:' .. apr, 'user_id', 'tool')
      if q[1] then redis.call('SREM', p .. 'ar:' .. q[1], a[1] .. US .. q[2]) end
      redis.call('SREM', p .. 'asked', apr)
      redis.call('UNLINK', p .. 'a:' .. apr)
    end
    redis.call('UNLINK', p .. 't:' .. tid, p .. 'c:' .. tid, p .. 'dt:' .. tid, p .. 'at:' .. tid)
  end
  local left = redis.call('LLEN', p .. 'ts:' .. a[1])
  if left == 0 then redis.call('HDEL', p .. 'deleted', a[1]) end
  return left
end)

-- the inbox -----------------------------------------------------------------------------------------------

-- User, scope and session of a message, with what would have to be stored for them. What people say among
-- themselves is refused before anything is asked of who sent it.
local function find(p, a)
  local new = {}
  local user, scope = a.user_id, a.scope
  if not scope and not a.direct then
    local group = a.channel .. ' group' .. US .. a.account .. US .. (a.conversation or '')
    scope = redis.call('HGET', p .. 'people', group)
    if not scope then
      scope = a.new_group
      new[#new + 1] = {'people', group, scope}
    end
  end
  local function known(owner)
    if not a.conversation then return nil, nil end
    local key = table.concat({a.channel, a.account, a.conversation, a.thread or '', owner}, US)
    return redis.call('HGET', p .. 'keys', key) or nil, key
  end
  local sid = a.session_id or (scope and known(scope))
  if not sid and a.only_known then return nil, nil, nil, nil, {'error', 'unknown'} end
  if not user then
    local person = a.channel .. US .. a.account .. US .. a.sender
    user = redis.call('HGET', p .. 'people', person)
    if not user then
      if a.strangers ~= 'serve' then
        local is_asked = a.strangers == 'pair' and not a.only_known
        return nil, nil, nil, nil, {'error', is_asked and 'pairing' or 'ignored'}
      end
      user = a.new_user
      new[#new + 1] = {'people', person, user}
      new[#new + 1] = {'users', user, cjson.encode({role = 'user', created_at = a.now})}
    end
  end
  scope = scope or user
  if a.session_id then
    local row = redis.call('HMGET', p .. 's:' .. sid, 'user_id', 'm:passing')
    if row[1] ~= scope or (row[2] and row[2] ~= cjson.encode(a.msg_id)) then
      return nil, nil, nil, nil, {'error', 'session_not_found'}
    end
    return user, scope, sid, new
  end
  local found, key = known(scope)
  return user, scope, found, new, nil, key
end

local function store_new(p, new)
  for _, one in ipairs(new) do redis.call('HSET', p .. one[1], one[2], one[3]) end
  if #new > 0 then redis.call('PUBLISH', p .. 'ctl', cjson.encode({kind = 'people'})) end
end

-- what: the envelope as JSON
register('identify', function(p, a)
  local user, scope, sid, new, refused = find(p, cjson.decode(a[1]))
  if refused then return refused end
  store_new(p, new)
  return {'ok', user, scope, sid or ''}
end)

-- envelope, message
register('accept', function(p, args)
  local a = cjson.decode(args[1])
  local user, scope, sid, new, refused, key = find(p, a)
  if refused then return refused end
  local owner = a.account ~= '' and a.account or user
  local ids = {}
  for i, id in ipairs(a.dedupe) do
    ids[i] = p .. 'd:' .. a.channel .. US .. owner .. US .. id
    local first = redis.call('HMGET', ids[i], 's', 't')
    if first[2] then return {'duplicate', first[1], first[2]} end
  end
  if redis.call('EXISTS', p .. 'dl:' .. a.note) == 1 then return {'error', 'told'} end
  if tonumber(redis.call('GET', p .. 'waiting') or '0') >= a.max_waiting then return {'error', 'overloaded'} end
  local ahead = 0
  if sid then
    ahead = redis.call('LLEN', p .. 'q:' .. sid)
    local waiting = ahead - redis.call('HEXISTS', p .. 's:' .. sid, 'running')
    if waiting >= a.per_session then return {'error', 'session_busy'} end
  end
  for _, id in ipairs(a.uploads) do
    local up = redis.call('HMGET', p .. 'up:' .. id, 'user_id', 'created_at')
    local late = redis.call('ZSCORE', p .. 'unsent', id) and up[2] and tonumber(up[2]) <= tonumber(a.now) - a.keep_unsent
    if up[1] ~= user or late then return {'error', 'not_found', id} end
  end
  for _, id in ipairs(a.uploads) do redis.call('ZREM', p .. 'unsent', id) end
  store_new(p, new)
  if not sid then
    sid = a.new_session
    local made = {user_id = scope, channel = a.channel, key = key, thread = a.thread,
      created_at = a.now, updated_at = a.now}
    save(p, sid, made, {}, '')
  end
  local n = redis.call('INCR', p .. 'n')
  local tid = a.new_turn
  redis.call('HSET', p .. 't:' .. tid, 'n', n, 'session_id', sid, 'user_id', user, 'scope', scope, 'channel',
    a.channel, 'message', args[2], 'state', 'waiting', 'attempt', 0, 'tries', 0, 'created_at', a.now)
  redis.call('RPUSH', p .. 'q:' .. sid, tid)
  redis.call('RPUSH', p .. 'ts:' .. sid, tid)
  redis.call('INCR', p .. 'waiting')
  for _, id in ipairs(ids) do
    redis.call('HSET', id, 's', sid, 't', tid)
    redis.call('PEXPIRE', id, a.remember)
  end
  make_ready(p, sid)
  return {'accepted', sid, tid, user, scope, n, ahead}
end)

-- tid, fence
register('begin', function(p, a)
  local key = p .. 't:' .. a[1]
  local t = redis.call('HMGET', key, 'session_id', 'state', 'cancel')
  if not t[1] then return false end
  check_fence(p, t[1], a[2])
  if (t[2] ~= 'waiting' and t[2] ~= 'running') or t[3] == '1' then return false end
  if t[2] == 'waiting' then redis.call('DECR', p .. 'waiting') end
  redis.call('HSET', key, 'state', 'running')
  redis.call('HSET', p .. 's:' .. t[1], 'running', a[1])
  return {redis.call('HINCRBY', key, 'attempt', 1), redis.call('HINCRBY', key, 'tries', 1)}
end)

-- tid, fence
register('put_back', function(p, a)
  local t = redis.call('HMGET', p .. 't:' .. a[1], 'state', 'tries', 'session_id')
  if t[3] then check_fence(p, t[3], a[2]) end
  if t[1] == 'running' and tonumber(t[2]) > 0 then redis.call('HINCRBY', p .. 't:' .. a[1], 'tries', -1) end
end)

-- tid, call, fence
register('started', function(p, a)
  check_fence(p, redis.call('HGET', p .. 't:' .. a[1], 'session_id') or '', a[3])
  redis.call('SADD', p .. 'c:' .. a[1], a[2])
end)

-- tid, fence, state, outcome, now, more = {entries, deliveries, usage, day}
register('end', function(p, a)
  local tid, state = a[1], a[3]
  local key = p .. 't:' .. tid
  local t = fields(redis.call('HGETALL', key))
  local sid = t.session_id
  if not sid then return 0 end
  local mark = t.attempt .. ':' .. a[2] .. ':' .. state .. ':' .. redis.sha1hex(a[4])
  if t.ended_by == mark then return 1 end
  check_fence(p, sid, a[2])
  if (t.state ~= 'waiting' and t.state ~= 'running') or (t.cancel == '1' and state ~= 'cancelled') then return 0 end
  local more = cjson.decode(a[6])
  if t.state == 'waiting' then redis.call('DECR', p .. 'waiting') end
  append(p, sid, more.entries)
  redis.call('HSET', key, 'state', state, 'outcome', a[4], 'ended_at', a[5], 'ended_by', mark)
  if redis.call('HGET', p .. 's:' .. sid, 'running') == tid then redis.call('HDEL', p .. 's:' .. sid, 'running') end
  redis.call('LREM', p .. 'q:' .. sid, 1, tid)
  redis.call('ZREM', p .. 'cut', tid)
  if redis.call('HEXISTS', p .. 's:' .. sid, 'user_id') == 1 then touch(p, sid, t.scope, a[5]) end
  redis.call('DEL', p .. 'c:' .. tid)
  for _, apr in ipairs(redis.call('HVALS', p .. 'at:' .. tid)) do
    if redis.call('HGET', p .. 'a:' .. apr, 'state') == 'asked' then
      redis.call('HSET', p .. 'a:' .. apr, 'state', 'denied')
      redis.call('SREM', p .. 'asked', apr)
    end
  end
  for _, d in ipairs(more.deliveries) do insert_delivery(p, d) end
  for _, used in ipairs(more.usage) do count_usage(p, p .. 'us:' .. t.user_id .. ':' .. more.day, used) end
  if #more.usage > 0 then redis.call('SADD', p .. 'usd:' .. t.user_id, more.day) end
  return 1
end)

-- tid
register('cancel', function(p, a)
  local key = p .. 't:' .. a[1]
  local state = redis.call('HGET', key, 'state')
  if state ~= 'waiting' and state ~= 'running' then return 0 end
  redis.call('HSET', key, 'cancel', 1)
  redis.call('PUBLISH', p .. 'ctl', cjson.encode({kind = 'cancel', turn_id = a[1]}))
  return 1
end)

-- tid, sid, mark of the call: takes a turn out that nobody has begun; who called is to end it.
register('take_out', function(p, a)
  local key = p .. 't:' .. a[1]
  local t = redis.call('HMGET', key, 'state', 'cut')
  if t[1] ~= 'waiting' or t[2] == a[3] then return t[1] == 'waiting' and 1 or 0 end
  if redis.call('LINDEX', p .. 'q:' .. a[2], 0) == a[1] and redis.call('EXISTS', p .. 'l:' .. a[2]) == 1 then
    return 0
  end
  if redis.call('LREM', p .. 'q:' .. a[2], 1, a[1]) == 0 then return 0 end
  redis.call('HSET', key, 'cut', a[3])
  redis.call('ZADD', p .. 'cut', now_ms(), a[1])
  return 1
end)

-- milliseconds: puts turns back that were taken out so long ago and not ended, since who did it has died.
register('put_in', function(p, a)
  for _, tid in ipairs(redis.call('ZRANGEBYSCORE', p .. 'cut', 0, now_ms() - a[1])) do
    local t = redis.call('HMGET', p .. 't:' .. tid, 'session_id', 'state')
    if t[2] == 'waiting' and redis.call('HEXISTS', p .. 's:' .. t[1], 'user_id') == 1 then
      redis.call('LPUSH', p .. 'q:' .. t[1], tid)
      make_ready(p, t[1])
    end
    redis.call('ZREM', p .. 'cut', tid)
  end
end)

-- leases --------------------------------------------------------------------------------------------------

-- sid, node, milliseconds: {fence, tid, the turn}, 'held' by another, or 'empty'.
register('acquire', function(p, a)
  local sid = a[1]
  local owner = redis.call('GET', p .. 'l:' .. sid)
  if owner and owner ~= a[2] then return {'held'} end
  local tid = redis.call('LINDEX', p .. 'q:' .. sid, 0)
  if not tid or redis.call('HEXISTS', p .. 's:' .. sid, 'user_id') == 0 then return {'empty'} end
  redis.call('SET', p .. 'l:' .. sid, a[2], 'PX', a[3])
  local fence = redis.call('HINCRBY', p .. 's:' .. sid, 'fence', 1)
  return {'ok', fence, tid, redis.call('HGETALL', p .. 't:' .. tid)}
end)

-- sid, node, fence ('' = not held), entry, tid that is done with though it has not ended; or, from a node that
-- stops, '' twice and 'stop'
register('release', function(p, a)
  local sid = a[1]
  if a[3] ~= '' then
    if tonumber(redis.call('HGET', p .. 's:' .. sid, 'fence') or a[3]) ~= tonumber(a[3]) then return 0 end
    redis.call('DEL', p .. 'l:' .. sid)
    if a[5] ~= '' then redis.call('LREM', p .. 'q:' .. sid, 1, a[5]) end
  else
    local pending = redis.call('XPENDING', p .. 'ready', 'gateways', a[4], a[4], 1)[1]
    if pending and pending[2] ~= a[2] then return 0 end -- another node has claimed it meanwhile
    if a[5] == 'stop' and redis.call('GET', p .. 'l:' .. sid) == a[2] then redis.call('DEL', p .. 'l:' .. sid) end
  end
  redis.call('XACK', p .. 'ready', 'gateways', a[4])
  redis.call('XDEL', p .. 'ready', a[4])
  if redis.call('EXISTS', p .. 'l:' .. sid) == 1 then return 0 end
  if redis.call('HEXISTS', p .. 's:' .. sid, 'user_id') == 1 then
    redis.call('HDEL', p .. 's:' .. sid, 'ready')
    if redis.call('LLEN', p .. 'q:' .. sid) > 0 then make_ready(p, sid) end
  else
    redis.call('DEL', p .. 's:' .. sid, p .. 'q:' .. sid)
  end
  return 1
end)

-- node, milliseconds, {{sid, fence, entry, tid}, …}: the sessions that are lost, then the turns to be cancelled.
register('renew', function(p, a)
  local lost, cancelled = {}, {}
  for _, one in ipairs(cjson.decode(a[3])) do
    local sid = one[1]
    if tonumber(redis.call('HGET', p .. 's:' .. sid, 'fence') or '0') == tonumber(one[2]) then
      redis.call('SET', p .. 'l:' .. sid, a[1], 'PX', a[2])
      redis.call('XCLAIM', p .. 'ready', 'gateways', a[1], 0, one[3], 'JUSTID')
      if redis.call('HGET', p .. 't:' .. one[4], 'cancel') == '1' then cancelled[#cancelled + 1] = one[4] end
    else
      lost[#lost + 1] = sid
    end
  end
  return {lost, cancelled}
end)

-- live events: sid, fence, batch, 'new' for the first of an attempt, or 'aside' for one that nobody catches up on
register('emit', function(p, a)
  local sid, id = a[1], ''
  if a[2] ~= '' and tonumber(redis.call('HGET', p .. 's:' .. sid, 'fence') or '0') > tonumber(a[2]) then return 0 end
  if a[4] ~= 'aside' and redis.call('HEXISTS', p .. 's:' .. sid, 'user_id') == 1 then -- not of a deleted one
    local key = p .. 'ev:' .. sid
    if a[4] == 'new' then redis.call('XTRIM', key, 'MAXLEN', 0) end -- ids go on rising
    id = redis.call('XADD', key, 'MAXLEN', '~', a[5], '*', 'b', a[3])
    redis.call('PEXPIRE', key, a[6])
  end
  redis.call('PUBLISH', p .. 'e:' .. sid, id .. ' ' .. a[3])
  return 1
end)

-- deliveries ----------------------------------------------------------------------------------------------

-- place, node, milliseconds: the oldest row, when no other node delivers there.
register('next_delivery', function(p, a)
  local lease = p .. 'lp:' .. a[1]
  local owner = redis.call('GET', lease)
  if owner and owner ~= a[2] then return false end
  local key = redis.call('ZRANGE', p .. 'dc:' .. a[1], 0, 0)[1]
  if not key then
    redis.call('DEL', lease)
    redis.call('SREM', p .. 'dopen', a[1])
    return false
  end
  redis.call('SET', lease, a[2], 'PX', a[3])
  return redis.call('HGETALL', p .. 'dl:' .. key:sub(28))
end)

-- node, milliseconds, places: keeps their leases.
register('keep_places', function(p, a)
  for _, one in ipairs(cjson.decode(a[3])) do
    if redis.call('GET', p .. 'lp:' .. one) == a[1] then redis.call('PEXPIRE', p .. 'lp:' .. one, a[2]) end
  end
end)

-- row
register('open_stream', function(p, a)
  local d = cjson.decode(a[1])
  local first = redis.call('ZRANGE', p .. 'dc:' .. place(d), 0, 0, 'WITHSCORES')
  if first[1] and tonumber(first[2]) < d.n then return false end
  local known = redis.call('HGETALL', p .. 'dl:' .. d.key)
  if #known > 0 then return known end
  insert_delivery(p, d)
  return {}
end)

-- rows, keys of a message of which none must have become a turn
register('notice', function(p, a)
  for _, key in ipairs(cjson.decode(a[2])) do
    if redis.call('HEXISTS', p .. 'd:' .. key, 't') == 1 then return 0 end
  end
  for _, d in ipairs(cjson.decode(a[1])) do insert_delivery(p, d) end
  return 1
end)

-- key, node ('' = anybody), changes, what becomes of it: open, sent, dead or begun; milliseconds for a sent one
register('delivery', function(p, a)
  local key = p .. 'dl:' .. a[1]
  local d = fields(redis.call('HGETALL', key))
  if not d.key then return 0 end
  local owner = redis.call('GET', p .. 'lp:' .. place(d)) or a[2]
  if a[2] ~= '' and owner ~= a[2] then error({err = 'STALE'}) end
  if a[4] == 'begun' and d.state ~= 'pending' and d.state ~= 'sending' then return 0 end
  for name, value in pairs(cjson.decode(a[3])) do
    if value == '' then redis.call('HDEL', key, name) else redis.call('HSET', key, name, value) end
  end
  if a[4] == 'begun' then redis.call('HINCRBY', key, 'attempts', 1) end
  if a[4] == 'sent' or a[4] == 'dead' then close_delivery(p, d) end
  if a[4] == 'sent' then
    if tonumber(d.n) == 0 then -- a notice: known by its key alone
      redis.call('HSET', key, 'text', '')
      redis.call('SREM', p .. 'dt:' .. d.turn_id, a[1])
    end
    keep_sent(p, d, a[5])
    redis.call('ZREM', p .. 'du:' .. d.user_id, a[1])
    redis.call('ZREM', p .. 'du', a[1])
  end
  return 1
end)

-- key, user ('' = any), now
register('revive', function(p, a)
  local key = p .. 'dl:' .. a[1]
  local d = fields(redis.call('HGETALL', key))
  if (a[2] ~= '' and d.user_id ~= a[2]) or d.state ~= 'dead' then return false end
  redis.call('HSET', key, 'state', 'pending', 'next_at', a[3], 'created_at', a[3], 'attempts', 0,
    'uncertain', math.min(2, 2 * tonumber(d.uncertain)))
  open_delivery(p, fields(redis.call('HGETALL', key)))
  return redis.call('HGETALL', key)
end)

-- user: what is not sent yet, dead letters among it, and what was sent
register('drop_deliveries', function(p, a)
  for _, name in ipairs({'du:', 'ds:'}) do
    for _, key in ipairs(redis.call('ZRANGE', p .. name .. a[1], 0, -1)) do drop_delivery(p, key) end
  end
  redis.call('UNLINK', p .. 'ds:' .. a[1])
end)

-- people --------------------------------------------------------------------------------------------------

local function drop_logins(p, user)
  for _, name in ipairs(redis.call('SMEMBERS', p .. 'logins:' .. user)) do
    redis.call('UNLINK', p .. 'login:' .. name)
  end
  redis.call('UNLINK', p .. 'logins:' .. user)
end

-- user
register('drop_logins', function(p, a) drop_logins(p, a[1]) end)

-- user, row ('' removes the user, with the people of platforms and timers that are theirs)
register('shut_out', function(p, a)
  drop_logins(p, a[1])
  if a[2] ~= '' then
    redis.call('HSET', p .. 'users', a[1], a[2])
    return
  end
  local people = fields(redis.call('HGETALL', p .. 'people'))
  for who, user in pairs(people) do
    if user == a[1] then redis.call('HDEL', p .. 'people', who) end
  end
  for id, row in pairs(fields(redis.call('HGETALL', p .. 'timers'))) do
    if cjson.decode(row).user_id == a[1] then redis.call('HDEL', p .. 'timers', id) end
  end
  redis.call('HDEL', p .. 'users', a[1])
end)

-- user, hash of the token that was shown, name of the login, seconds: whether the user has that token
register('login', function(p, a)
  local row = redis.call('HGET', p .. 'users', a[1])
  if not row or cjson.decode(row).token_hash ~= a[2] then return 0 end
  redis.call('SET', p .. 'login:' .. a[3], a[1], 'EX', a[4])
  redis.call('SADD', p .. 'logins:' .. a[1], a[3])
  return 1
end)

-- name of the login
register('user_of_login', function(p, a)
  local user = redis.call('GET', p .. 'login:' .. a[1])
  return user and redis.call('HEXISTS', p .. 'users', user) == 1 and user
end)

-- approvals -----------------------------------------------------------------------------------------------

-- the question as JSON; returns the one that stands
register('ask', function(p, a)
  local q = cjson.decode(a[1])
  local by_turn = p .. 'at:' .. q.turn_id
  local known = redis.call('HGETALL', by_turn)
  for i = 1, #known, 2 do
    local digest, call = known[i]:match('^(%x+)' .. US .. '(.*)$')
    local old = digest == q.digest and redis.call('HGETALL', p .. 'a:' .. known[i + 1])
    if old and fields(old).digest ~= '' then
      local state = fields(old).state
      if call == q.call_id or state == 'denied' or state == 'unattended' or state == 'expired' then return old end
    end
  end
  redis.call('HSET', by_turn, q.digest .. US .. q.call_id, q.approval_id)
  for name, value in pairs(q) do redis.call('HSET', p .. 'a:' .. q.approval_id, name, value) end
  redis.call('SADD', p .. 'asked', q.approval_id)
  return redis.call('HGETALL', p .. 'a:' .. q.approval_id)
end)

local function may_answer(p, q, user, is_admin)
  if q.user_id == user then return true end
  local owner = redis.call('HGET', p .. 's:' .. q.session_id, 'user_id') or ''
  return is_admin == '1' and owner:sub(1, 4) == 'grp_'
end

-- reference, user, whether an admin, state, rule: session, always or '', now, arguments if they are others now
register('decide', function(p, a)
  for _, id in ipairs(redis.call('SMEMBERS', p .. 'asked')) do
    if id == a[1] or id:sub(-6) == a[1] then
      local found = redis.call('HGETALL', p .. 'a:' .. id)
      local q = fields(found)
      if q.state == 'asked' and tonumber(q.expires_at) > tonumber(a[6]) and may_answer(p, q, a[2], a[3]) then
        redis.call('HSET', p .. 'a:' .. id, 'state', a[4], 'scope', a[5])
        if a[7] and a[7] ~= '' then redis.call('HSET', p .. 'a:' .. id, 'arguments', a[7]) end
        redis.call('SREM', p .. 'asked', id)
        if a[5] ~= '' then
          local session = a[5] == 'session' and q.session_id or ''
          redis.call('SADD', p .. 'ar:' .. q.user_id, session .. US .. q.tool)
        end
        redis.call('PUBLISH', p .. 'ctl', cjson.encode({kind = 'approval', approval_id = id, state = a[4], scope = a[5]}))
        return found
      end
    end
  end
  return false
end)

-- id, whether it may be asked anew: 'expired' unless somebody was first
register('expire', function(p, a)
  if redis.call('HGET', p .. 'a:' .. a[1], 'state') == 'asked' then
    redis.call('HSET', p .. 'a:' .. a[1], 'state', 'expired')
    if a[2] == '1' then redis.call('HSET', p .. 'a:' .. a[1], 'digest', '') end -- see `ask`
    redis.call('SREM', p .. 'asked', a[1])
  end
  return redis.call('HGET', p .. 'a:' .. a[1], 'state')
end)

-- user, whether an admin
register('questions', function(p, a)
  local found = {}
  for _, id in ipairs(redis.call('SMEMBERS', p .. 'asked')) do
    local row = redis.call('HGETALL', p .. 'a:' .. id)
    if #row > 0 and may_answer(p, fields(row), a[1], a[2]) then found[#found + 1] = row end
  end
  return found
end)

-- the rest ------------------------------------------------------------------------------------------------

-- key, result, session that it names, milliseconds
register('remember', function(p, a)
  redis.call('HSET', p .. 'd:' .. a[1], 'result', a[2])
  redis.call('PEXPIRE', p .. 'd:' .. a[1], a[4])
  if a[3] ~= '' and redis.call('HEXISTS', p .. 's:' .. a[3], 'user_id') == 1 then
    redis.call('SADD', p .. 'dk:' .. a[3], a[1])
    redis.call('PEXPIRE', p .. 'dk:' .. a[3], a[4])
  end
end)

-- user, day, used, 'stored' or 'live', milliseconds that a live counter is kept, mark of the call, milliseconds for
-- which it may be repeated
register('use', function(p, a)
  if not redis.call('SET', p .. 'ud:' .. a[6], 1, 'NX', 'PX', a[7]) then return end
  local key = p .. (a[4] == 'live' and 'ul:' or 'us:') .. a[1] .. ':' .. a[2]
  for _, used in ipairs(cjson.decode(a[3])) do count_usage(p, key, used) end
  if a[4] == 'live' then redis.call('PEXPIRE', key, a[5]) else redis.call('SADD', p .. 'usd:' .. a[1], a[2]) end
end)

-- timer id, user, row: whether there is the user
register('save_timer', function(p, a)
  if redis.call('HEXISTS', p .. 'users', a[2]) == 0 then return 0 end
  redis.call('HSET', p .. 'timers', a[1], a[3])
  return 1
end)

-- those of users who are not there: how many
register('drop_timers', function(p, a)
  local gone = 0
  for id, row in pairs(fields(redis.call('HGETALL', p .. 'timers'))) do
    if redis.call('HEXISTS', p .. 'users', cjson.decode(row).user_id) == 0 then
      gone = gone + redis.call('HDEL', p .. 'timers', id)
    end
  end
  return gone
end)

-- timer id, planned, next ('' = none), session ('' = as it is), whether it goes when it has no next
register('move_on', function(p, a)
  local raw = redis.call('HGET', p .. 'timers', a[1])
  if not raw then return 0 end
  local timer = cjson.decode(raw)
  if tonumber(timer.next_at) ~= tonumber(a[2]) then return 0 end
  if a[3] == '' and a[5] == '1' then
    redis.call('HDEL', p .. 'timers', a[1])
  else
    timer.next_at = a[3] ~= '' and a[3] or nil
    if a[4] ~= '' then timer.session_id = a[4] end
    redis.call('HSET', p .. 'timers', a[1], cjson.encode(timer))
  end
  redis.call('PUBLISH', p .. 'ctl', cjson.encode({kind = 'timers'}))
  return 1
end)
