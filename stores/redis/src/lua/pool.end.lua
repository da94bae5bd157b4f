
return {
  pool_open = pool_open, pool_close = pool_close, pool_grant = pool_grant, holders_of = holders_of,
  pool_acquire = pool_acquire, pool_renew = pool_renew, pool_release = pool_release,
  queue_first = queue_first,
}
end

