-- Deletes a job's hash and what hangs on it; the lock is left to its owner or its expiry.
local function drop_job(job)
  redis.call('DEL', job, job .. ':logs', job .. ':dependencies', job .. ':processed', job .. ':failed',
    job .. ':unsuccessful')
end
