
return {
  line_of = line_of, lock_acquire = lock_acquire, lock_pass_on = lock_pass_on, lock_released = lock_released,
  queue_read = queue_read, queue_run = queue_run, inbox_of = inbox_of,
}
end
