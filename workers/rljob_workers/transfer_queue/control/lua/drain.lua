-- The drain: no ticket is given until somebody takes it back. An epoch does not end it: who asked for it still wants it.

-- '1': withhold tickets, '0': give them again. Gives since when they are withheld, in ms (0: they are given).
admin_call('drain', function(args)
  local since = meta('draining')
  if args[1] == '1' then
    if since then return {tonumber(since)} end
    local now = now_ms()
    redis.call('HSET', META, 'draining', now)
    return {now}, true
  end
  if not since then return {0} end
  redis.call('HSET', META, 'drained_until', now_ms())
  redis.call('HDEL', META, 'draining')
  wake('tickets')
  return {0}, true
end)
