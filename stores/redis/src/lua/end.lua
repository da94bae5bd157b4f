
return {
  line_of = line_of, lock_acquire = lock_acquire, lock_pass_on = lock_pass_on, lock_released = lock_released,
  pool_open = pool_open, pool_close = pool_close, pool_grant = pool_grant, holders_of = holders_of,
  pool_acquire = pool_acquire, pool_renew = pool_renew, pool_release = pool_release,
  queue_first = queue_first, queue_list = queue_list, inbox_of = inbox_of, tell = tell,
}
end

