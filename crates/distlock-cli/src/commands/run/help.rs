//! The text below the options of `distlock run --help`.

pub(crate) const EXAMPLES: &str = "\
The command gets DISTLOCK_NAME and DISTLOCK_TOKEN, a number that rises with every holder.

If the lock cannot be renewed, all processes of the command get SIGTERM and, after --grace,
SIGKILL, before the lease can pass to another holder. If the lock is lost already (broken,
or its lock file removed) there is no grace: SIGTERM at once, SIGKILL within a second.
Until then the next holder may run at the same time as the command; only a resource that
refuses old tokens excludes that.

With --hold-at-least the lock stays held for that time after the command: distlock waits for
it. If distlock is ended or killed before, the store keeps the lock for the rest of the
time; on the file store, the lock file says so. Stores whose locks end with a session
(postgres+advisory, zookeeper, etcd) refuse the option.

A watchdog process (shown as lockwatch) ends the command if distlock is killed or paused;
on the file store it keeps the lock until the command's processes have ended. If both are
killed with SIGKILL, the kernel kills the command but not the processes that it started,
nor a command that changed its user (sudo, setuid): these keep running without the lock.

Exit code: the command's own, 128 + n if signal n ended it, 126 or 127 if it cannot be run
or found; 75 if the lock was not acquired, 76 if it was lost while the command ran, 69 if
the store failed, 64 for wrong usage.

Examples:
  distlock run nightly -- ./backup.sh
  distlock run --no-wait nightly -- ./backup.sh    skip the backup if the lock is held
  distlock run --timeout 10s deploy -- make deploy
  distlock run nightly -c 'pg_dump app | gzip > app.gz'
  distlock run --read catalogue -- ./report.sh     many readers, or one --write
  distlock run --of 4 gpu -- ./train.py            at most four at a time on all machines
  distlock run --hold-at-least 1m hourly -- ./job  no second run by a machine with a late clock";
